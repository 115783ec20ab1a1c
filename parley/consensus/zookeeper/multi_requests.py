"""Two requests of ZooKeeper's protocol that kazoo lacks.

``Multi``: several writes and version checks in one step. kazoo has such a request, but drops results without content.
``MultiRead``: several reads of one state (ZooKeeper 3.6).

Both are lists of records, each after a header of type, end mark and error code. In responses an error has type -1.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from parley.light_dataclasses import dataclass

_HEADER = struct.Struct("!iBi")
_INT = struct.Struct("!i")
_STAT = struct.Struct("!qqqqiiiqiiq")
_END = _HEADER.pack(-1, 1, -1)
_CREATE, _DELETE, _GET_DATA, _SET_DATA, _GET_CHILDREN, _CHECK, _ERROR = 1, 2, 4, 5, 8, 13, -1

OK, ROLLED_BACK, RUNTIME_INCONSISTENCY = 0, 0, -2
NO_NODE, NO_AUTH, BAD_VERSION, NODE_EXISTS, UNIMPLEMENTED = -101, -102, -103, -110, -6
ANY_VERSION = -1
LASTING, EPHEMERAL, SEQUENTIAL = 0, 1, 2

Acl: TypeAlias = Sequence[tuple[int, str, str]]
"""Access rules: the permission bits, scheme and id of each."""


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of a znode's Stat that are used here."""

    mzxid: int
    version: int
    cversion: int
    children: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create a znode. The result is its path."""

    path: str
    data: bytes
    acl: Acl
    flags: int = LASTING


@dataclass(frozen=True, slots=True)
class SetData:
    """Write the data of a znode, which must have this version. The result is its Stat."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class DeleteNode:
    """Delete a znode, which must have this version. The result is None."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class CheckVersion:
    """Check that the znode exists and has this version. The result is None."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Data:
    """Read a znode. The result is a tuple of its data and its Stat."""

    path: str


@dataclass(frozen=True, slots=True)
class Children:
    """Read the names of a znode's children. The result is a list."""

    path: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The result of an operation that failed, or was not carried out because another one failed (``ROLLED_BACK``)."""

    code: int


WriteOp: TypeAlias = "Create | SetData | DeleteNode | CheckVersion"


@dataclass(frozen=True, slots=True)
class Multi:
    """A request that applies all of these operations or none. Each operation has a result; if one is ``Failed``, all
    are."""

    ops: Sequence[WriteOp]
    type: ClassVar[int] = 14

    def serialize(self) -> bytes:
        """For kazoo: return the body of the request."""
        return b"".join(map(_write_op, self.ops)) + _END

    @classmethod
    def deserialize(cls, buffer: bytes, offset: int) -> list[Any]:
        """For kazoo: return the results."""
        return _results(buffer, offset)


@dataclass(frozen=True, slots=True)
class MultiRead:
    """A request that carries out several reads on one state. Each read has a result, which may be ``Failed``."""

    reads: Sequence[Data | Children]
    type: ClassVar[int] = 22

    def serialize(self) -> bytes:
        """For kazoo: return the body of the request."""
        return b"".join(map(_read_op, self.reads)) + _END

    @classmethod
    def deserialize(cls, buffer: bytes, offset: int) -> list[Any]:
        """For kazoo: return the results."""
        return _results(buffer, offset)


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return _INT.pack(len(raw)) + raw


def _write_op(op: WriteOp) -> bytes:
    match op:
        case Create(path, data, acl, flags):
            rules = b"".join(_INT.pack(bits) + _string(scheme) + _string(name) for bits, scheme, name in acl)
            body = _INT.pack(len(data)) + data + _INT.pack(len(acl)) + rules + _INT.pack(flags)
            kind = _CREATE
        case SetData(path, data, version):
            kind, body = _SET_DATA, _INT.pack(len(data)) + data + _INT.pack(version)
        case DeleteNode(path, version):
            kind, body = _DELETE, _INT.pack(version)
        case CheckVersion(path, version):
            kind, body = _CHECK, _INT.pack(version)
    return _HEADER.pack(kind, 0, -1) + _string(path) + body


def _read_op(read: Data | Children) -> bytes:
    kind = _GET_DATA if isinstance(read, Data) else _GET_CHILDREN
    return _HEADER.pack(kind, 0, -1) + _string(read.path) + b"\0"


def _results(buffer: bytes, offset: int) -> list[Any]:
    results: list[Any] = []
    while True:
        kind, done, _ = _HEADER.unpack_from(buffer, offset)
        offset += _HEADER.size
        if done:
            return results
        result: Any = None
        if kind == _ERROR:
            result, offset = Failed(_INT.unpack_from(buffer, offset)[0]), offset + _INT.size
        elif kind == _GET_CHILDREN:
            result, offset = _names(buffer, offset)
        elif kind == _GET_DATA:
            content, offset = _bytes(buffer, offset)
            stat, offset = _stat(buffer, offset)
            result = (content, stat)
        elif kind == _CREATE:
            content, offset = _bytes(buffer, offset)
            result = content.decode("utf-8")
        elif kind == _SET_DATA:
            result, offset = _stat(buffer, offset)
        results.append(result)


def _bytes(buffer: bytes, offset: int) -> tuple[bytes, int]:
    length = max(_INT.unpack_from(buffer, offset)[0], 0)  # -1 is null, treated as empty
    offset += _INT.size
    return buffer[offset : offset + length], offset + length


def _names(buffer: bytes, offset: int) -> tuple[list[str], int]:
    count = _INT.unpack_from(buffer, offset)[0]
    offset += _INT.size
    names = []
    for _ in range(count):
        name, offset = _bytes(buffer, offset)
        names.append(name.decode("utf-8"))
    return names, offset


def _stat(buffer: bytes, offset: int) -> tuple[Stat, int]:
    _, mzxid, _, _, version, cversion, _, _, _, children, _ = _STAT.unpack_from(buffer, offset)
    return Stat(mzxid, version, cversion, children), offset + _STAT.size
