"""Keys below a prefix, as the bytes that etcd sorts, and its entries as ours."""

from __future__ import annotations

from parley.consensus.backend import Entry, Revision
from parley.consensus.etcd import etcd_pb2 as pb


class Keyspace:
    """What lies where below a prefix."""

    def __init__(self, prefix: str) -> None:
        self.identity = f"{prefix}/identity".encode("ascii")
        self._data = f"{prefix}/data/".encode("ascii")
        self.probe = self._data + b"\0"
        """Never present, since no key of ours is like it; who may delete it may write."""

    def key(self, key: str) -> bytes:
        """Where a key of ours is."""
        return self._data + key.encode("ascii")

    def range(self, prefix: str, after: str | None = None) -> tuple[bytes, bytes]:
        """The first key and the end of all that start with a prefix, behind another key."""
        start = self._data + _bytes(prefix)
        end = start[:-1] + bytes([start[-1] + 1])  # no byte of UTF-8 is 0xFF
        return (max(start, self._data + _bytes(after) + b"\0") if after is not None else start), end

    def name(self, key: bytes) -> str:
        """The key of ours that is there."""
        return key[len(self._data) :].decode("ascii", "replace")

    def entry(self, found: pb.KeyValue) -> Entry:
        """A key and its value."""
        session = session_id(found.lease) if found.lease else None
        return Entry(self.name(found.key), found.value, Revision(found.mod_revision), session)


def session_id(lease: int) -> str:
    """The session that a lease is."""
    return f"{lease:016x}"


def lease_of(session: str) -> int:
    """The lease that a session is; 0, which none is, for a session of another store."""
    try:
        lease = int(session, 16)
    except ValueError:
        return 0
    return lease if 0 < lease < 1 << 63 else 0


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
