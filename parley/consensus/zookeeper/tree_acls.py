"""Access control of an existing tree: which clients may read and change its znodes."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import ACL, Id

from parley.consensus.errors import BadConfig, Unauthorized
from parley.consensus.zookeeper.address import CREATOR_ACL, OPEN_ACL, Address
from parley.consensus.zookeeper.connection import synchronous_client


class NoTree(BadConfig):
    """Raised if the chroot contains no Parley tree."""


def set_acls(address: Address, *, secure: bool) -> int:
    """Open every znode of the tree to all clients, or (``secure``) only to the credentials of the address. Blocks.

    Returns the number of znodes. Brokers with the same credentials may keep running. The brokers' ``acl`` option
    determines the ACLs of the znodes that they create, so restart the brokers with its new value before this call.

    Raises Unauthorized if these credentials may not change the ACLs, NoTree if there is no tree, BadConfig if there are
    no credentials with which to lock the tree, and Unavailable if no server responds.
    """
    if secure and not address.endpoint.has_credentials:
        raise BadConfig("locking a tree needs credentials: user and password-file, or cert-file and key-file")
    rules = CREATOR_ACL if secure else OPEN_ACL
    acl = [ACL(bits, Id(scheme, name)) for bits, scheme, name in rules]
    with synchronous_client(address.endpoint, address.connect_s) as client:
        if not client.exists(address.root):
            raise NoTree(f"there is no tree at {address.root}")
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
            continue  # deleted meanwhile
    return done
