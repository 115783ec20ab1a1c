"""The places of the store's parts in ZooKeeper's tree, and the encoding of keys and values there.

::

    <chroot>/parley                     the format of the tree, as text
    <chroot>/parley/identity/<name>     the store's identity
    <chroot>/parley/keys/<bucket>       256 buckets; the version counts the deletions in the bucket
    <chroot>/parley/keys/<bucket>/<key> one byte n, the id of a session in n bytes, the value
    <chroot>/parley/sessions/<id>       ephemeral, one for each session
    <chroot>/parley/log/c<number>       the change log: the keys that one transaction changed, one per line

The name of a znode is its key, with spaces in place of slashes: ZooKeeper allows spaces, and no key contains them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from parley.light_dataclasses import dataclass

FORMAT = b"1"
BUCKETS = 256
ENTRY_PREFIX = "c"


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """The paths of one store, below ``root``."""

    root: str

    @property
    def identities(self) -> str:
        """The parent of the single znode whose name is the store's identity."""
        return f"{self.root}/identity"

    @property
    def sessions(self) -> str:
        """The parent of the sessions' znodes; their names are the session ids."""
        return f"{self.root}/sessions"

    @property
    def log(self) -> str:
        """The parent of the change log's entries."""
        return f"{self.root}/log"

    @property
    def keys(self) -> str:
        """The parent of the buckets."""
        return f"{self.root}/keys"

    def bucket(self, key: str) -> str:
        """Return the path of the bucket of a key."""
        return f"{self.root}/keys/{zlib.crc32(key.encode('ascii')) % BUCKETS:02x}"

    def buckets(self) -> list[str]:
        """Return the paths of all buckets."""
        return [f"{self.root}/keys/{number:02x}" for number in range(BUCKETS)]

    def key(self, key: str) -> str:
        """Return the path of a key's znode."""
        return f"{self.bucket(key)}/{key.replace('/', ' ')}"

    def session(self, session_id: str) -> str:
        """Return the path of a session's znode."""
        return f"{self.root}/sessions/{session_id}"

    def entry(self, number: int) -> str:
        """Return the path of an entry of the change log."""
        return f"{self.root}/log/{ENTRY_PREFIX}{number:010d}"

    def skeleton(self, identity: str) -> list[tuple[str, bytes]]:
        """Return the znodes of an empty store with their data, parents first."""
        parents = [(self.root, FORMAT), (self.identities, b""), (f"{self.identities}/{identity}", b"")]
        parents += [(self.log, b""), (self.sessions, b""), (self.keys, b"")]
        return parents + [(bucket, b"") for bucket in self.buckets()]


def key_of(name: str) -> str:
    """Return the key for the name of a znode."""
    return name.replace(" ", "/")


def number_of(name: str) -> int:
    """Return the number of a log entry, from its name or path."""
    return int(name.rpartition("/")[2][len(ENTRY_PREFIX) :])


def entries_made(cversion: int, children: int) -> int:
    """Return the number of entries ever added to the log, from the Stat of its parent, which counts additions and
    removals."""
    return ((cversion + children) % (1 << 32)) // 2


def encode(value: bytes, session_id: str | None) -> bytes:
    """Return the data of a key's znode."""
    owner = (session_id or "").encode("ascii")
    return bytes([len(owner)]) + owner + value


def decode(data: bytes) -> tuple[bytes, str | None]:
    """Return the value and the session id in the data of a key's znode."""
    start = 1 + data[0]
    return data[start:], data[1:start].decode("ascii") or None


def encode_changes(keys: Sequence[str]) -> bytes:
    """Return the data of a log entry."""
    return "\n".join(keys).encode("ascii")


def decode_changes(data: bytes) -> tuple[str, ...]:
    """Return the keys in a log entry."""
    return tuple(data.decode("ascii").split("\n")) if data else ()
