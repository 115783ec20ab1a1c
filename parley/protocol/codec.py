"""Converts messages to bytes and back, and builds the frames that contain them.

The code for one version of one message is generated and compiled at its first use (``parley.protocol.decoding``,
``parley.protocol.encoding``) and kept. A decoding failure is always ``MalformedMessage``; an encoding failure is a
ValueError that names the message, its version and the field. Both decoding and encoding raise ValueError for a version
that the message does not have.
"""

from __future__ import annotations

import struct
from typing import Any, Final, TypeVar

from parley.protocol.decoding import ELEMENTS_MAX, REQUEST_ELEMENTS_MAX, Decoder, compile_decoder
from parley.protocol.encoding import EncodedArray, Encoder, compile_element_encoder, compile_encoder, fault
from parley.protocol.errors import MalformedMessage
from parley.protocol.messages.headers import RequestHeader
from parley.protocol.schema import Buffer, Data, Message, Request, Response, Struct

__all__ = [
    "Buffer",
    "EncodedArray",
    "decode",
    "decode_from",
    "decode_stored",
    "encode",
    "encode_element",
    "encode_frame_parts",
    "encode_stored",
    "request_frame",
    "response_frame",
]

M = TypeVar("M", bound=Message)
D = TypeVar("D", bound=Data)

_COPIED_BYTES_MAX: Final = 16 * 1024  # a message up to this size is decoded from bytes, which is faster than a view

_decoders: dict[tuple[type[Message], int], tuple[Decoder, bool, int]] = {}
_encoders: dict[tuple[type[Message], int], Encoder] = {}
_element_encoders: dict[tuple[type[Message], int, type[Struct]], Encoder] = {}

_SIZE_AND_CORRELATION: Final = struct.Struct(">ii")
_WITH_TAGS: Final = struct.Struct(">iix")  # and no tagged fields
_response_headers: dict[tuple[type[Message], int], struct.Struct] = {}
_SIZE: Final = struct.Struct(">i")
_STORED_VERSION: Final = struct.Struct(">h")


def decode(cls: type[M], version: int, data: Buffer, pos: int = 0) -> M:
    """Decode the message that fills ``data`` from ``pos`` to its end.

    Records in the message are slices of ``data``, valid until the caller overwrites it. Raises MalformedMessage, for
    example if bytes are left over, and ValueError if the message does not have this version.
    """
    message, end = decode_from(cls, version, data, pos)
    if end != len(data):
        raise MalformedMessage(f"{cls.__name__} v{version} is followed by {len(data) - end} unexpected bytes")
    return message


def decode_from(cls: type[M], version: int, data: Buffer, pos: int, elements_max: int = ELEMENTS_MAX) -> tuple[M, int]:
    """Decode the message that starts at ``pos``, like ``decode``, but allow bytes after it. Returns the message and the
    position after it.

    Raises TooManyElements if its arrays contain more than ``elements_max`` elements, or more than the protocol allows.
    """
    try:
        decoder, by_reference, most = _decoders[cls, version]
    except KeyError:
        decoder, by_reference, most = _decoder(cls, version)
    whole = data  # records are slices of it, so it must not be a copy
    if by_reference:
        if type(data) is not memoryview:
            whole = memoryview(data)
        if len(data) > _COPIED_BYTES_MAX:
            data = whole
    if type(data) is not bytes and len(data) <= _COPIED_BYTES_MAX:
        data = bytes(data)
    return decoder(data, pos, most if most < elements_max else elements_max, whole)


def encode(message: Message, version: int) -> bytes:
    """Return the bytes of a message, without a header and without the size of a frame. Raises ValueError if the message
    cannot be encoded in this version."""
    parts: list[Buffer] = []
    parts.append(_append(message, version, bytearray(), parts))
    return b"".join(parts)


def encode_element(message: type[Message], version: int, element: Struct) -> bytes:
    """Return the bytes of one element of an array in ``message``, for use in an ``EncodedArray``. Raises ValueError if
    the element cannot be encoded in this version of the message."""
    cls = type(element)
    try:
        encoder = _element_encoders[message, version, cls]
    except KeyError:
        _check_version(message, version)
        encoder = _element_encoders[message, version, cls] = compile_element_encoder(message, version, cls)
    parts: list[Buffer] = []
    try:
        parts.append(encoder(element, bytearray(), parts))
        return b"".join(parts)
    except (struct.error, AttributeError, TypeError, ValueError) as error:
        raise _refusal(element, version, message.is_flexible(version), error) from error


def encode_frame_parts(message: Message, version: int) -> list[Buffer]:
    """Return the bytes of a message in consecutive pieces.

    Records of more than ``encoding.COPIED_BYTES_MAX`` bytes become separate pieces, without being copied. Raises
    ValueError if the message cannot be encoded in this version.
    """
    parts: list[Buffer] = []
    out = _append(message, version, bytearray(), parts)
    if out:
        parts.append(out)
    return parts


def encode_stored(message: Data, version: int) -> bytes:
    """Encode a stored record's key or value: the version as an int16, then the message. Raises ValueError if the
    message cannot be encoded in this version."""
    parts: list[Buffer] = []
    parts.append(_append(message, version, bytearray(_STORED_VERSION.pack(version)), parts))
    return b"".join(parts)


def decode_stored(cls: type[D], data: Buffer) -> tuple[D, int]:
    """Decode a stored record's key or value. Returns it and its version.

    Raises MalformedMessage, for example if newer software wrote a version that ``cls`` does not have.
    """
    if len(data) < _STORED_VERSION.size:
        raise MalformedMessage(f"{cls.__name__}: {len(data)} bytes are too short for a version")
    version: int = _STORED_VERSION.unpack_from(data)[0]
    if version not in cls.VERSIONS:
        raise MalformedMessage(f"{cls.__name__} has versions {cls.VERSIONS}, not {version}")
    return decode(cls, version, data, _STORED_VERSION.size), version


def request_frame(message: Request, version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """Return a whole request frame, including its size, in consecutive pieces. Raises ValueError if the request cannot
    be encoded in this version."""
    header = RequestHeader(
        request_api_key=message.API_KEY,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    parts: list[Buffer] = []
    out = _append(header, message.header_version(version), bytearray(_SIZE.size), parts)
    return _framed(message, version, out, parts)


def response_frame(message: Response, version: int, correlation_id: int) -> list[Buffer]:
    """Return a whole response frame, including its size, in consecutive pieces. Raises ValueError if the response
    cannot be encoded in this version."""
    key = type(message), version
    header = _response_headers.get(key)
    if header is None:
        header = _response_headers[key] = _SIZE_AND_CORRELATION if message.header_version(version) < 1 else _WITH_TAGS
    out = bytearray(header.pack(0, correlation_id))
    return _framed(message, version, out, [])


def _framed(message: Message, version: int, out: bytearray, parts: list[Buffer]) -> list[Buffer]:
    first = out
    out = _append(message, version, out, parts)
    if out:
        parts.append(out)
    size = -_SIZE.size
    for part in parts:
        size += len(part)
    _SIZE.pack_into(first, 0, size)
    return parts


def _append(message: Message, version: int, out: bytearray, parts: list[Buffer]) -> bytearray:
    """Append an encoded message to ``out``. Returns the bytearray to which the caller appends next, and adds completed
    pieces to ``parts``."""
    cls = type(message)
    try:
        encoder = _encoders[cls, version]
    except KeyError:
        encoder = _encoder(cls, version)
    try:
        return encoder(message, out, parts)
    except (struct.error, AttributeError, TypeError, ValueError) as error:
        raise _refusal(message, version, cls.is_flexible(version), error) from error


def _refusal(this: Struct, version: int, flexible: bool, error: Exception) -> ValueError:
    """Return the error for a message that cannot be encoded. It names the field."""
    return ValueError(f"{type(this).__name__} v{version}: {fault(this, version, flexible) or error}")


def _decoder(cls: type[Message], version: int) -> tuple[Decoder, bool, int]:
    _check_version(cls, version)
    most = REQUEST_ELEMENTS_MAX if issubclass(cls, Request) else ELEMENTS_MAX
    made = compile_decoder(cls, version), _has_records(cls), most
    _decoders[cls, version] = made
    return made


def _encoder(cls: type[Message], version: int) -> Encoder:
    _check_version(cls, version)
    made = compile_encoder(cls, version)
    _encoders[cls, version] = made
    return made


def _check_version(cls: type[Message], version: int) -> None:
    if version not in cls.VERSIONS:
        raise ValueError(f"{cls.__name__} has versions {cls.VERSIONS}, not {version}")


def _has_records(cls: type[Any]) -> bool:
    """Return True if the message contains a records field at any depth."""
    for declared in cls.fields():
        kind = declared.type
        while kind.element is not None:
            kind = kind.element
        if kind.kind == "records" or (kind.struct is not None and _has_records(kind.struct)):
            return True
    return False
