"""How a tree in ZooKeeper is protected: by the ACLs of its znodes, and by TLS."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError

from parley.consensus.protection import Finding, Guard, Protection, of_connection
from parley.consensus.zookeeper.address import Address
from parley.consensus.zookeeper.connection import synchronous_client

ZNODES_MAX = 10_000
"""The maximum number of znodes whose ACLs are read. A tree that is only partly locked is usually open near its root."""
_AT_ONCE = 100
"""The number of znodes that are read at a time, without waiting for each response."""
_ADVICE = (
    "give the brokers a user and acl=true in coordination.url, restart them one by one, then run "
    "`parley zookeeper-security-migration --zookeeper.acl secure` as that user"
)
_TLS_ADVICE = (
    "set secureClientPort and ssl.keyStore.location in the servers' configuration, then ca-file in coordination.url"
)


def protection_of(address: Address) -> Protection:
    """Return how the store is protected, from the ACLs of its tree and the settings of the connection. Blocks.

    Raises Unavailable if no server responds, and KazooException if a server rejects the requests.
    """
    with synchronous_client(address.endpoint, address.connect_s) as client:
        tree = _of_tree(client, address.root)
    encrypted = bool(address.endpoint.tls.get("use_ssl"))
    return Protection(tree, of_connection(address.endpoint.hosts, encrypted=encrypted, advice=_TLS_ADVICE))


def _of_tree(client: KazooClient, root: str) -> Finding:
    pending, seen = [root], 0
    while pending and seen < ZNODES_MAX:
        part, pending = pending[:_AT_ONCE], pending[_AT_ONCE:]
        sent = [(path, client.get_acls_async(path), client.get_children_async(path)) for path in part]
        for path, acls, children in sent:
            try:
                (found, _), names = acls.get(), children.get()
            except NoNodeError:
                continue  # deleted meanwhile
            except NoAuthError:
                return Finding(Guard.UNKNOWN, f"this account may not read the ACL of {path}", _ADVICE)
            pending += [f"{path}/{name}" for name in names]
            seen += 1
            if strangers := [acl for acl in found if acl.perms and acl.id.scheme in ("world", "ip")]:
                (first, *_) = strangers
                return Finding(Guard.OPEN, f"{path} is open to {first.id.scheme}:{first.id.id}", _ADVICE)
    return Finding(Guard.CLOSED, f"the ACLs of {root} allow its account only ({seen} znodes)")
