"""Finding the store in the tree when a client opens it, or making an empty one."""

from __future__ import annotations

from kazoo.exceptions import KazooException, NoAuthError, NoNodeError
from kazoo.protocol.serialization import GetChildren, GetData

from parley.consensus.errors import BadConfig, Unauthorized, Unavailable, Unsupported, WrongStore
from parley.consensus.zookeeper.address import Address
from parley.consensus.zookeeper.connection import MAIN_TIMEOUT_MS, Connection, LostAnswer
from parley.consensus.zookeeper.consistent_reads import Reader
from parley.consensus.zookeeper.key_layout import FORMAT, Layout
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


async def prepared(
    connection: Connection, address: Address, layout: Layout, new_name: str, expected: str | None
) -> str:
    """The identity of the store, which can be read and written; an empty one is initialised with ``new_name``.

    :raises WrongStore, Unauthorized, Unsupported, Unavailable, BadConfig: as ``Backend.open``.
    """
    try:
        found = await _identity(connection, layout, address.connect_s)
        if found is None:
            if expected is not None:
                raise WrongStore(f"expected the store {expected}, found none at {layout.root}")
            await _make(connection, address, layout, new_name)
            found = await _identity(connection, layout, address.connect_s)
        if found is None:
            raise Unavailable(f"the store at {layout.root} was removed while it was opened")
        if expected not in (None, found):
            raise WrongStore(f"expected the store {expected}, found {found} at {layout.root}", found=found)
        await Reader(connection, layout, found, address.connect_s).state(fresh=True)
        await _prove_writing(connection, address, layout, found, new_name)
    except LostAnswer as error:
        raise Unavailable(str(error)) from error
    except NoAuthError as error:
        raise Unauthorized(f"these credentials may not read or write {layout.root}") from error
    return found


async def look(address: Address, layout: Layout, identity: str, within_s: float) -> None:
    """Look at the store over a connection of its own, whose server need not know what an older one has seen.

    :raises WrongStore: it is gone, or another one.
    :raises CoordinationError: it could not be seen.
    """
    connection = Connection(address.endpoint, MAIN_TIMEOUT_MS, lambda connected: None)
    connection.start()
    try:
        await connection.connected(within_s)
        found = await _identity(connection, layout, within_s)
    except (LostAnswer, KazooException) as error:
        raise Unavailable(f"the store could not be seen: {error!r}") from error
    finally:
        await connection.close()
    if found != identity:
        raise WrongStore(f"the store {identity} is not there any more; was ZooKeeper's data deleted?", found=found)


async def _identity(connection: Connection, layout: Layout, within_s: float) -> str | None:
    """The identity that is stored, ``None`` if there is no store."""
    try:
        data, _ = await connection.sync_and_call(GetData(layout.root, None), within_s)
    except NoNodeError:
        return None
    if data != FORMAT:
        raise Unsupported(f"{layout.root} has the format {data!r}; this release knows {FORMAT!r}")
    try:
        names = await connection.call(GetChildren(layout.identities, None), within_s)
    except NoNodeError:
        names = []
    if len(names) != 1:
        raise BadConfig(f"{layout.root} exists and is not a store of ours; choose another chroot")
    name: str = names[0]
    return name


async def _make(connection: Connection, address: Address, layout: Layout, name: str) -> None:
    """Make an empty store, all in one step; nothing happens if somebody else just has."""
    for parent in address.parents:
        (made,) = await connection.call(Multi([Create(parent, b"", address.parent_acl)]), address.connect_s)
        if isinstance(made, Failed) and made.code != NODE_EXISTS:
            _refuse([made], parent)
    ops: list[WriteOp] = [Create(path, data, address.acl) for path, data in layout.skeleton(name)]
    results = await connection.call(Multi(ops), address.connect_s)
    if any(result == Failed(NODE_EXISTS) for result in results):
        return
    _refuse(results, layout.root)


async def _prove_writing(connection: Connection, address: Address, layout: Layout, identity: str, name: str) -> None:
    """Write where each kind of write will be made, leaving nothing behind."""
    probe = layout.session(f"probe-{name}")
    ops: list[WriteOp] = [CheckVersion(f"{layout.identities}/{identity}")]
    ops += [Create(probe, b"", address.acl), DeleteNode(probe)]
    key = f"{layout.bucket('probe')}/{name}"
    ops += [Create(key, b"\0", address.acl), SetData(key, b"\0"), DeleteNode(key)]
    _refuse(await connection.call(Multi(ops), address.connect_s), layout.root)


def _refuse(results: list[object], path: str) -> None:
    for result in results:
        if isinstance(result, Failed) and result.code not in (OK, RUNTIME_INCONSISTENCY):
            if result.code == NO_AUTH:
                raise Unauthorized(f"these credentials may not write {path}")
            raise Unavailable(f"ZooKeeper does not let {path} be written (error {result.code})")
