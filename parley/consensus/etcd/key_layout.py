"""The mapping from keys of the store to keys of etcd, which are below a prefix and sort in the same order."""

from __future__ import annotations

from parley.consensus.backend import Entry, Revision
from parley.consensus.etcd import etcd_pb2 as pb


class KeyLayout:
    """The keys below one prefix."""

    def __init__(self, prefix: str) -> None:
        self.place = f"{prefix} in etcd"
        """The location of the store, for error messages."""
        self.identity = f"{prefix}/identity".encode("ascii")
        self._data = f"{prefix}/data/".encode("ascii")
        self.probe = self._data + b"\0"
        """A key that never exists, because no Parley key contains a zero byte. A client with permission to delete it
        also has permission to write."""

    def key(self, key: str) -> bytes:
        """Return the etcd key of a store key."""
        return self._data + key.encode("ascii")

    def range(self, prefix: str, after: str | None = None) -> tuple[bytes, bytes]:
        """Return the bounds of the keys that start with a prefix and come after ``after``: the start and the exclusive
        end. If the start is not below the end, there are no such keys."""
        start = self._data + _bytes(prefix)
        end = start[:-1] + bytes([start[-1] + 1])  # no byte of UTF-8 is 0xFF
        return (max(start, self._data + _bytes(after) + b"\0") if after is not None else start), end

    def name(self, key: bytes) -> str:
        """Return the store key of an etcd key."""
        return key[len(self._data) :].decode("ascii", "replace")

    def entry(self, found: pb.KeyValue) -> Entry:
        """Return the store entry of an etcd key and value."""
        session = session_id(found.lease) if found.lease else None
        return Entry(self.name(found.key), found.value, Revision(found.mod_revision), session)


def session_id(lease: int) -> str:
    """Return the session id of a lease."""
    return f"{lease:016x}"


def lease_of(session: str) -> int:
    """Return the lease of a session, or 0 (never a lease) if the session id is not from etcd."""
    try:
        lease = int(session, 16)
    except ValueError:
        return 0
    return lease if 0 < lease < 1 << 63 else 0


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
