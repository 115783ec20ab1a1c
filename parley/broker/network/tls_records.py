"""Finds the ends of records in a TLS stream, so that a client's bytes can be decrypted a few records at a time.

OpenSSL handles all available records, one after another, until a record contains data. One read from a socket can
return thousands of records without data: empty records, key updates, alerts. Each takes microseconds.
"""

from __future__ import annotations

from typing import Final

HEADER_BYTES: Final = 5
"""The size of a record's header: one byte for the type, two for the version and two for the length. All versions of TLS
send it in plaintext."""


class RecordEnds:
    """Tracks the record boundaries of one stream."""

    __slots__ = ("_header", "_missing")

    def __init__(self) -> None:
        self._missing = 0  # bytes of the current record's body that have not arrived
        self._header = bytearray()  # the part of the next header that has arrived

    def take(self, data: memoryview, most: int) -> tuple[int, int]:
        """Take the next bytes of the stream, up to the end of the ``most``-th record, or all of ``data``.

        Returns the number of bytes taken, and the number of records that end in them.
        """
        size, position, ended, missing = len(data), 0, 0, self._missing
        while position < size:
            if not missing:
                if not self._header and size - position >= HEADER_BYTES:
                    missing = data[position + 3] << 8 | data[position + 4]
                    position += HEADER_BYTES
                else:
                    piece = data[position : position + HEADER_BYTES - len(self._header)]
                    self._header += piece
                    position += len(piece)
                    if len(self._header) < HEADER_BYTES:
                        break
                    missing = self._header[3] << 8 | self._header[4]
                    self._header.clear()
            if missing > size - position:
                missing -= size - position
                position = size
                break
            position += missing
            missing = 0
            ended += 1
            if ended == most:
                break
        self._missing = missing
        return position, ended
