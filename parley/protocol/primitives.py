"""Functions for parts of the wire format that the generated codecs do not inline: varints, UUIDs, tagged sections
(KIP-482).

The generated codecs inline the common cases, and call these functions for all others. A position outside the buffer
raises IndexError, which the generated decoder turns into ``MalformedMessage``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from parley.protocol.errors import MalformedMessage
from parley.protocol.schema import Buffer
from parley.protocol.uuids import UUID

_UUIDS_KEPT: Final = 4096


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint: seven bits per byte, lowest first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Return the unsigned varint at ``pos``, of at most 32 bits, and the position after it.

    Raises MalformedMessage if the varint is longer, and IndexError if the buffer ends inside it.
    """
    first = buf[pos]
    return (first, pos + 1) if first < 128 else rest_of_uvarint(buf, pos + 1, first)


def rest_of_uvarint(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """Finish ``read_uvarint`` when its first byte, ``first``, has been read and the rest of the varint is at
    ``pos``."""
    value = first & 127
    for shift in (7, 14, 21, 28):
        byte = buf[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                break
            return value, pos
    raise MalformedMessage("a varint is longer than 32 bits")


def read_tags(buf: Buffer, pos: int, count: int) -> tuple[tuple[tuple[int, bytes], ...], int]:
    """Return the ``count`` tagged fields at ``pos`` as (tag, content) pairs, and the position after them. Raises the
    errors of ``read_tag``."""
    tags = []
    last = -1
    for _ in range(count):
        last, pos, stop = read_tag(buf, pos, last)
        tags.append((last, bytes(buf[pos:stop])))
        pos = stop
    return tuple(tags), pos


def read_tag(buf: Buffer, pos: int, last: int) -> tuple[int, int, int]:
    """Return the tag of the tagged field at ``pos``, and the start and the exclusive end of its content.
    Raises MalformedMessage if the tag is not greater than ``last``, the tag before it (-1: none), or if the content
    extends beyond the buffer. Raises IndexError if the buffer ends before the content.
    """
    tag, pos = read_uvarint(buf, pos)
    size, pos = read_uvarint(buf, pos)
    if tag <= last:
        raise MalformedMessage(f"tag {tag} follows tag {last}, but tags must be in ascending order")
    if pos + size > len(buf):
        raise MalformedMessage(f"tagged field {tag} claims {size} bytes, but only {len(buf) - pos} are left")
    return tag, pos, pos + size


def tag_section(tags: Iterable[tuple[int, Buffer]]) -> bytes:
    """Return the encoded section of tagged fields, including their count. Raises ValueError if a tag occurs twice."""
    ordered = sorted(tags, key=lambda pair: pair[0])
    out = bytearray(uvarint(len(ordered)))
    last = -1
    for tag, content in ordered:
        if tag <= last:
            raise ValueError(f"tag {tag} occurs twice")
        last = tag
        out += uvarint(tag)
        out += uvarint(len(content))
        out += content
    return bytes(out)


class UuidCache(dict[bytes, UUID]):
    """A bounded cache of UUIDs by their 16 bytes: the same topic ids are in every request, and creating a UUID is
    slow."""

    def __missing__(self, raw: bytes) -> UUID:
        if len(self) >= _UUIDS_KEPT:
            self.clear()
        made = self[raw] = UUID(bytes=raw)
        return made


UUIDS: Final = UuidCache()
