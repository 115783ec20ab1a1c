"""The identity of a store in ZooKeeper: the name of the znode below ``identity``. Opens and verifies stores."""

from __future__ import annotations

import random

from kazoo.exceptions import KazooException, NoAuthError, NoNodeError
from kazoo.protocol.serialization import GetChildren, GetData

from parley.consensus.errors import BadConfig, Unauthorized, Unavailable, Unsupported
from parley.consensus.store_identity import new_identity, open_identity
from parley.consensus.zookeeper.address import Address
from parley.consensus.zookeeper.connection import MAIN_TIMEOUT_MS, Connection, ResponseLost
from parley.consensus.zookeeper.consistent_reads import Reader, store_deleted
from parley.consensus.zookeeper.key_layout import FORMAT, KeyLayout
from parley.consensus.zookeeper.multi_requests import (
    NO_AUTH,
    NODE_EXISTS,
    OK,
    RUNTIME_INCONSISTENCY,
    CheckVersion,
    Create,
    DeleteNode,
    Failed,
    Multi,
    SetData,
    WriteOp,
)


async def open_store(
    connection: Connection, address: Address, layout: KeyLayout, expected: str | None, rng: random.Random
) -> str:
    """Find or create the store, prove that it can be read and written, and return its identity.

    Raises the errors of ``Backend.open``.
    """
    try:
        identity = await open_identity(ZookeeperIdentity(connection, address, layout), expected, rng)
        await Reader(connection, layout, identity, address.connect_s).state(fresh=True)
        await _prove_writing(connection, address, layout, identity, new_identity(rng))
    except ResponseLost as error:
        raise Unavailable(str(error)) from error
    except NoAuthError as error:
        raise Unauthorized(f"these credentials may not read or write {layout.root}") from error
    return identity


async def verify_store(address: Address, layout: KeyLayout, identity: str, within_s: float) -> None:
    """Verify that the store still has its identity, over a new connection.

    The server accepts a new connection even if its state is older than what the client has seen, as after the deletion
    of its data. Raises WrongStore if the store was deleted or replaced. Raises other coordination errors if that cannot
    be determined.
    """
    connection = Connection(address.endpoint, MAIN_TIMEOUT_MS, lambda state: None)
    connection.start()
    try:
        await connection.connected(within_s)
        found = await _read_identity(connection, layout, within_s)
    except (ResponseLost, KazooException) as error:
        raise Unavailable(f"the store's identity could not be read: {error!r}") from error
    finally:
        await connection.close()
    if found != identity:
        raise store_deleted(identity, found)


class ZookeeperIdentity:
    """Reads and writes the identity of a store in ZooKeeper (``parley.consensus.store_identity.IdentityStorage``)."""

    def __init__(self, connection: Connection, address: Address, layout: KeyLayout) -> None:
        self._connection = connection
        self._address = address
        self._layout = layout

    @property
    def place(self) -> str:
        return f"{self._layout.root} in ZooKeeper"

    async def read_identity(self) -> str | None:
        """Return the identity, or None if the chroot is empty. Raises BadConfig if it contains something other than a
        store, and Unsupported if the store has another format."""
        return await _read_identity(self._connection, self._layout, self._address.connect_s)

    async def initialize(self, identity: str) -> None:
        """Create an empty store with this identity in one step, after its parents, unless another client has done
        so."""
        address = self._address
        for parent in address.parents:
            request = Multi([Create(parent, b"", address.parent_acl)])
            (created,) = await self._connection.call(request, address.connect_s)
            if isinstance(created, Failed) and created.code != NODE_EXISTS:
                _raise_if_refused([created], parent)
        ops: list[WriteOp] = [Create(path, data, address.acl) for path, data in self._layout.skeleton(identity)]
        results = await self._connection.call(Multi(ops), address.connect_s)
        if not any(result == Failed(NODE_EXISTS) for result in results):
            _raise_if_refused(results, self._layout.root)


async def _read_identity(connection: Connection, layout: KeyLayout, within_s: float) -> str | None:
    try:
        data, _ = await connection.sync_and_call(GetData(layout.root, None), within_s)
    except NoNodeError:
        return None
    if data != FORMAT:
        raise Unsupported(f"{layout.root} has the format {data!r}; this release of Parley knows {FORMAT!r}")
    try:
        names = await connection.call(GetChildren(layout.identities, None), within_s)
    except NoNodeError:
        names = []
    if len(names) != 1:
        raise BadConfig(f"{layout.root} exists, but is not a Parley store; choose another chroot")
    name: str = names[0]
    return name


async def _prove_writing(
    connection: Connection, address: Address, layout: KeyLayout, identity: str, probe_name: str
) -> None:
    """Write to every place to which the backend will write, and delete what was written."""
    session = layout.session(f"probe-{probe_name}")
    ops: list[WriteOp] = [CheckVersion(f"{layout.identities}/{identity}")]
    ops += [Create(session, b"", address.acl), DeleteNode(session)]
    key = f"{layout.bucket('probe')}/{probe_name}"
    ops += [Create(key, b"\0", address.acl), SetData(key, b"\0"), DeleteNode(key)]
    _raise_if_refused(await connection.call(Multi(ops), address.connect_s), layout.root)


def _raise_if_refused(results: list[object], path: str) -> None:
    for result in results:
        if isinstance(result, Failed) and result.code not in (OK, RUNTIME_INCONSISTENCY):
            if result.code == NO_AUTH:
                raise Unauthorized(f"these credentials may not write {path}")
            raise Unavailable(f"ZooKeeper refuses a write to {path} (error {result.code})")
