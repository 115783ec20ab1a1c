"""Frames, headers and correlation ids without any I/O, for both ends of a connection and any transport.

Rules:

- A frame is a size (int32) and that many bytes. The frames that a ``FrameReader`` yields own their bytes, are writable,
  and do not exceed its limit.
- Small frames are received into one buffer per connection, which grows and shrinks with the traffic, and copied out of
  it. A larger frame is received directly into a separate bytearray.
- Both grow as data arrives. A peer that only claims a size makes this side allocate 16 KiB, or as much as the largest
  frame received so far on the connection, but at most 1 MiB. So thousands of idle connections cost little memory.
- Responses arrive in the order of the requests. After an unexpected correlation id, the connection must be closed,
  because the two ends are out of step.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from parley.named_tuples import new_tuple
from parley.protocol.codec import decode, request_frame
from parley.protocol.errors import ErrorCode, MalformedMessage
from parley.protocol.messages import APIS
from parley.protocol.primitives import read_tags, read_uvarint
from parley.protocol.schema import Buffer, Request, Response

__all__ = [
    "ClientConnection",
    "FrameReader",
    "FrameTooLarge",
    "MatchedResponse",
    "OtherProtocol",
    "RequestHeader",
    "parse_request_header",
]

_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhih")
_CORRELATION: Final = struct.Struct(">i")
_UNSUPPORTED_VERSION: Final = struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)

_READ_BYTES_MIN: Final = 4 * 1024
_READ_BYTES_MAX: Final = 128 * 1024
_HTTP: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"CONN", b"HTTP", b"<!DO", b"<htm", b"<HTM")
"""The first bytes of HTTP requests and responses, and of HTML pages without a header (HTTP/0.9)."""
_FRAME_BYTES_FIRST: Final = 16 * 1024  # the first allocation for the first large frame; more is allocated as it arrives
_FRAME_BYTES_TRUSTED: Final = 1024 * 1024  # the most that is allocated at once for a peer that has sent such a frame
_SMALL_READS: Final = 256  # the number of small reads in a row after which the buffer is halved

_PRODUCE_KEY: Final = 0
_API_VERSIONS_KEY: Final = 18
_NEVER: Final = 1 << 15
_HEADER_TAGS_MAX: Final = 1024


class OtherProtocol(Enum):
    """A protocol that the other side seems to use instead of Kafka's, with its description for error messages."""

    TLS_CLIENT = "a TLS client on a port without TLS"
    TLS_PORT = "a port that uses TLS"
    HTTP = "HTTP"


class FrameTooLarge(MalformedMessage):
    """The size of a frame exceeds the limit. The connection must be closed.
    ``protocol`` is the other protocol that the peer seems to use, or None.
    """

    def __init__(self, message: str, protocol: OtherProtocol | None = None) -> None:
        super().__init__(message if protocol is None else f"{message}; this looks like {protocol.value}")
        self.protocol = protocol


class FrameReader:
    """Splits a stream of bytes into frames of at most ``max_frame_bytes``.

    Has the interface of ``asyncio.BufferedProtocol``: receive into the buffer from ``get_buffer``, then pass the number
    of received bytes to ``buffer_updated`` and iterate over the frames.
    """

    __slots__ = ("_buffer", "_end", "_filled", "_first", "_frame", "_limit", "_size", "_small_reads", "_view")

    def __init__(self, max_frame_bytes: int) -> None:
        self._limit = max_frame_bytes
        self._resize(_READ_BYTES_MIN, b"")
        self._frame: bytearray | None = None  # the large frame that is being received
        self._size = 0  # the size of the large frame in bytes
        self._filled = 0  # the number of its bytes that have been received
        self._first = _FRAME_BYTES_FIRST  # the first allocation for the next large frame
        self._small_reads = 0

    def _resize(self, size: int, content: Buffer) -> None:
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self._buffer[: len(content)] = content
        self._end = len(content)

    def limit(self, max_frame_bytes: int) -> None:
        """Change the maximum size of the frames that follow."""
        self._limit = max_frame_bytes

    @property
    def large_frame_bytes(self) -> int:
        """The size of the large frame that is being received; 0 if there is none."""
        return self._size if self._frame is not None else 0

    @property
    def large_frame_received_bytes(self) -> int:
        """The number of bytes of the large frame that have arrived; 0 if there is none."""
        return self._filled if self._frame is not None else 0

    def get_buffer(self, hint: int = -1) -> memoryview:
        """Return the buffer for the next bytes, which is never empty. It is valid until the next call of any method."""
        frame = self._frame
        if frame is None:
            return self._view[self._end :]
        if self._filled == len(frame):
            self._frame = bytearray(min(self._size, 2 * len(frame)))
            self._frame[: self._filled] = frame
            frame = self._frame
        return memoryview(frame)[self._filled :]

    def buffer_updated(self, received: int) -> Iterator[memoryview]:
        """Yield each frame that the ``received`` bytes complete, without its length prefix. The caller must exhaust the
        iterator before any other call.

        Yields the frames before a bad frame, and then raises FrameTooLarge or MalformedMessage. After that, the stream
        can no longer be read.
        """
        if self._frame is not None:
            self._filled += received
            if self._filled == self._size:
                frame, self._frame = self._frame, None
                self._first = max(self._first, min(self._size, _FRAME_BYTES_TRUSTED))
                yield memoryview(frame)
            return
        buffer, pos, end = self._buffer, 0, self._end + received
        needed = 0
        while end - pos >= 4:
            size: int = _SIZE.unpack_from(buffer, pos)[0]
            if not 0 <= size <= self._limit:
                self._refuse(size, pos)
            if pos + 4 + size > end:
                needed = size + 4
                break
            yield memoryview(buffer[pos + 4 : pos + 4 + size])
            pos += 4 + size
        if needed > _READ_BYTES_MAX:
            self._begin_large(needed - 4, buffer[pos + 4 : end])
        else:
            self._keep(pos, end, needed, received)

    def _begin_large(self, size: int, content: bytearray) -> None:
        """Receive the rest of this frame into a separate bytearray."""
        self._frame = bytearray(min(size, max(self._first, 2 * len(content))))
        self._frame[: len(content)] = content
        self._size, self._filled = size, len(content)
        self._end = 0

    def _keep(self, pos: int, end: int, needed: int, received: int) -> None:
        """Move the incomplete frame to the start of the buffer, and adapt the buffer's size to the traffic."""
        buffer = self._buffer
        length = len(buffer)
        if received * 4 < length:
            self._small_reads += 1
        else:
            self._small_reads = 0
        if length < _READ_BYTES_MAX and end == length:
            self._resize(2 * length, buffer[pos:end])
        elif self._small_reads > _SMALL_READS and pos == end and length > _READ_BYTES_MIN:
            self._resize(max(length // 2, _READ_BYTES_MIN), b"")
            self._small_reads = 0
        else:
            if 0 < pos < end:
                buffer[: end - pos] = buffer[pos:end]
            self._end = end - pos

    def _refuse(self, size: int, pos: int) -> None:
        start = bytes(self._buffer[pos : pos + 4])
        if size < 0:
            raise MalformedMessage(f"a frame claims {size} bytes")
        protocol = None
        if start[:2] == b"\x16\x03":
            protocol = OtherProtocol.TLS_CLIENT
        elif start[:2] == b"\x15\x03":
            protocol = OtherProtocol.TLS_PORT
        elif start in _HTTP:
            protocol = OtherProtocol.HTTP
        raise FrameTooLarge(f"a frame claims {size} bytes, {self._limit} are allowed", protocol)


class RequestHeader(NamedTuple):
    """The header of a request, and the position of its body in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


# API key -> the first version with a flexible header, which has tagged fields
_FLEXIBLE_FROM: Final[dict[int, int]] = {}


def parse_request_header(frame: Buffer) -> RequestHeader:
    """Parse the header of a request frame (without its size).

    Also parses the header if the version or the API key is unknown; an unknown API is assumed not to be flexible. The
    caller must check both before it decodes the body. Raises MalformedMessage if the header is truncated or invalid.
    """
    try:
        api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
    except struct.error:
        raise MalformedMessage(f"{len(frame)} bytes are too few for a request") from None
    pos = _HEADER.size
    client_id = None
    if length >= 0:
        pos += length
        if pos > len(frame):
            raise MalformedMessage(f"client_id claims {length} bytes in a frame of {len(frame)} bytes")
        try:
            client_id = str(frame[_HEADER.size : pos], "utf-8")
        except UnicodeDecodeError:
            raise MalformedMessage("client_id is not UTF-8") from None
    elif length != -1:
        raise MalformedMessage(f"client_id has the invalid length {length}")
    first_flexible = _FLEXIBLE_FROM.get(api_key)
    if first_flexible is None:
        first_flexible = _first_flexible(api_key)
    if version >= first_flexible:
        pos = _skip_tags(frame, pos)
    return new_tuple(RequestHeader, (api_key, version, correlation_id, client_id, pos))


def _first_flexible(api_key: int) -> int:
    if api_key not in APIS:
        return _NEVER
    flexible = APIS[api_key].request.FLEXIBLE
    first = _FLEXIBLE_FROM[api_key] = flexible.min if flexible.max >= flexible.min else _NEVER
    return first


def _skip_tags(frame: Buffer, pos: int) -> int:
    """Return the position after a header's tagged fields. Kafka defines none so far."""
    try:
        if frame[pos] == 0:
            return pos + 1
        count, pos = read_uvarint(frame, pos)
        if count > _HEADER_TAGS_MAX:
            raise MalformedMessage(f"a header claims {count} tagged fields")
        return read_tags(frame, pos, count)[1]
    except IndexError:
        raise MalformedMessage("a header ends early") from None


class MatchedResponse(NamedTuple):
    """A response, and the correlation id of its request."""

    correlation_id: int
    response: Response


class ClientConnection:
    """The client's end of a connection: builds request frames and matches responses to requests.

    Any number of requests may be in flight. After it raises ``MalformedMessage``, the connection must be closed.
    """

    def __init__(self, client_id: str | None, max_frame_bytes: int) -> None:
        self._client_id = client_id
        self._reader = FrameReader(max_frame_bytes)
        self._next_correlation_id = 0
        self._in_flight: deque[tuple[int, type[Response], int]] = deque()
        self.get_buffer = self._reader.get_buffer

    @property
    def in_flight(self) -> int:
        """The number of requests whose responses have not arrived."""
        return len(self._in_flight)

    def send(self, request: Request, version: int) -> tuple[int | None, list[Buffer]]:
        """Return the frame of a request, in pieces, and the correlation id of its response.

        The id is None if there will be no response: a produce request with ``acks=0``. Raises ValueError, and changes
        nothing, if the request cannot be encoded in this version.
        """
        correlation_id = self._next_correlation_id
        frame = request_frame(request, version, correlation_id, self._client_id)
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        if request.API_KEY == _PRODUCE_KEY and getattr(request, "acks", None) == 0:
            return None, frame
        self._in_flight.append((correlation_id, APIS[request.API_KEY].response, version))
        return correlation_id, frame

    def buffer_updated(self, received: int) -> Iterator[MatchedResponse]:
        """Yield the responses that the ``received`` bytes complete. The caller must exhaust the iterator before any
        other call.
        Raises MalformedMessage if a response is invalid or too large, or does not belong to the oldest request in
        flight.
        """
        for frame in self._reader.buffer_updated(received):
            yield self._match(frame)

    def _match(self, frame: memoryview) -> MatchedResponse:
        if len(frame) < _CORRELATION.size:
            raise MalformedMessage(f"a response of {len(frame)} bytes is too short")
        correlation_id: int = _CORRELATION.unpack_from(frame)[0]
        if not self._in_flight:
            raise MalformedMessage(f"a response to request {correlation_id}, which was not sent")
        expected, response, version = self._in_flight.popleft()
        if correlation_id != expected:
            raise MalformedMessage(f"a response to request {correlation_id} instead of {expected}")
        pos = _CORRELATION.size
        if response.header_version(version) >= 1:
            pos = _skip_tags(frame, pos)
        return MatchedResponse(correlation_id, _decode_response(response, version, frame, pos))


def _decode_response(response: type[Response], version: int, frame: memoryview, pos: int) -> Response:
    """Decode the body of a response. A broker that does not support this version of ApiVersions responds in version 0
    (KIP-511)."""
    if response.API_KEY == _API_VERSIONS_KEY and frame[pos : pos + 2] == _UNSUPPORTED_VERSION:
        version = 0
    return decode(response, version, frame, pos)
