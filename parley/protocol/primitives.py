"""The wire's smallest parts that need more than one line: varints, UUIDs, tagged sections (KIP-482).

Compiled codecs inline every common case and call these for the rest. A position outside the buffer raises IndexError
here, which the compiled decoder that called turns into `MalformedMessage`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from parley.protocol.errors import MalformedMessage
from parley.protocol.schema import Buffer

_UUIDS_KEPT: Final = 4096


def uvarint(value: int) -> bytes:
    """An unsigned varint: seven bits a byte, lowest first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """The unsigned varint at `pos`, and the position after it. It has at most five bytes and 32 bits."""
    first = buf[pos]
    return (first, pos + 1) if first < 128 else rest_of_uvarint(buf, pos + 1, first)


def rest_of_uvarint(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """As `read_uvarint`, where `first`, the byte before `pos`, has been read and says that more follow."""
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
    """A section of `count` tagged fields of which none is known, as (tag, content) pairs, and the position after it."""
    tags = []
    last = -1
    for _ in range(count):
        last, pos, stop = read_tag(buf, pos, last)
        tags.append((last, bytes(buf[pos:stop])))
        pos = stop
    return tuple(tags), pos


def read_tag(buf: Buffer, pos: int, last: int) -> tuple[int, int, int]:
    """The head of one tagged field: its tag, where its content begins and where that ends. Tags only rise."""
    tag, pos = read_uvarint(buf, pos)
    size, pos = read_uvarint(buf, pos)
    if tag <= last:
        raise MalformedMessage(f"tag {tag} after tag {last}")
    if pos + size > len(buf):
        raise MalformedMessage(f"tagged field {tag} claims {size} bytes, {len(buf) - pos} are left")
    return tag, pos, pos + size


def tag_section(tags: Iterable[tuple[int, Buffer]]) -> bytes:
    """Tagged fields as they are on the wire, count first; raises ValueError if a tag occurs twice."""
    ordered = sorted(tags, key=lambda pair: pair[0])
    out = bytearray(uvarint(len(ordered)))
    last = -1
    for tag, content in ordered:
        if tag <= last:
            raise ValueError(f"tag {tag} is there twice")
        last = tag
        out += uvarint(tag)
        out += uvarint(len(content))
        out += content
    return bytes(out)


class UuidCache(dict[bytes, UUID]):
    """16 bytes -> UUID. Topic ids come again with every request, and making a UUID is slow; bounded."""

    def __missing__(self, raw: bytes) -> UUID:
        if len(self) >= _UUIDS_KEPT:
            self.clear()
        made = self[raw] = UUID(bytes=raw)
        return made


UUIDS: Final = UuidCache()
