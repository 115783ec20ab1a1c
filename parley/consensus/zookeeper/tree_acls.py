"""Locking and unlocking a tree that exists: who may read and change each of its znodes."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import ACL, Id

from parley.consensus.errors import BadConfig, Unauthorized
from parley.consensus.zookeeper.address import CREATOR_ACL, OPEN_ACL, Address
from parley.consensus.zookeeper.connection import synchronous_client


class NoTree(BadConfig):
    """There is no tree below this chroot."""


def set_acls(address: Address, *, secure: bool) -> int:
    """Give every znode of the tree to the credentials of the address only, or to everybody; how many there are. Blocks.

    Brokers may run meanwhile, if they have the same credentials. What they create is locked by their own ``acl``
    option: to lock, set that first and then call this; to unlock, the other way round.

    :raises Unauthorized: these credentials may not change the ACLs.
    :raises NoTree: there is no tree.
    :raises BadConfig: there are no credentials to lock it with.
    :raises Unavailable: no server answers.
    """
    if secure and not (address.endpoint.auth or address.endpoint.sasl or address.endpoint.tls.get("certfile")):
        raise BadConfig("to lock a tree, credentials are needed: user and password-file, or cert-file and key-file")
    rules = CREATOR_ACL if secure else OPEN_ACL
    acl = [ACL(bits, Id(scheme, name)) for bits, scheme, name in rules]
    with synchronous_client(address.endpoint, address.connect_s) as client:
        if not client.exists(address.root):
            raise NoTree(f"there is nothing at {address.root}")
        try:
            return _set_below(client, address.root, acl)
        except NoAuthError as error:
            raise Unauthorized(f"these credentials may not change who owns {address.root}") from error


def _set_below(client: KazooClient, root: str, acl: list[ACL]) -> int:
    done = 0
    pending = [root]
    while pending:
        path = pending.pop()
        try:
            client.set_acls(path, acl)
            pending += [f"{path}/{name}" for name in client.get_children(path)]
            done += 1
        except NoNodeError:
            continue  # gone meanwhile
    return done
