"""How a store in etcd is protected: by users and roles, and by TLS."""

from __future__ import annotations

import asyncio

from parley.consensus.errors import CoordinationError
from parley.consensus.etcd import etcd_pb2 as pb
from parley.consensus.etcd.address import Address
from parley.consensus.etcd.connection import Connection
from parley.consensus.etcd.grpc_methods import AUTHENTICATE
from parley.consensus.etcd.server_connection import REQUEST_S, RequestFailed
from parley.consensus.protection import Finding, Guard, Protection, of_connection

_ADVICE = (
    "create the user root, and a user for the brokers with a role for this prefix only, run `etcdctl auth enable`, and "
    "give the brokers user and password-file in coordination.url (docs/stores.md)"
)
_TLS_ADVICE = "start etcd with --cert-file and --key-file, then set ca-file in coordination.url"


async def protection_of(connection: Connection, address: Address) -> Protection:
    """Return how the store is protected. etcd's error for a login without a name reveals whether etcd has users."""
    encrypted = of_connection(", ".join(address.endpoints), encrypted=address.tls, advice=_TLS_ADVICE)
    try:
        server = await connection.server(asyncio.get_running_loop().time() + REQUEST_S)
        await server.unary(AUTHENTICATE, pb.AuthenticateRequest(), REQUEST_S)
    except RequestFailed as error:
        if "authentication is not enabled" in error.failure.text:
            return Protection(
                Finding(Guard.OPEN, "etcd has no users: every client may do everything", _ADVICE), encrypted
            )
        if isinstance(error.failure.error, CoordinationError) or "user name is empty" in error.failure.text:
            text = f"etcd requires a user; the roles decide which users may use {address.prefix}/"
            return Protection(Finding(Guard.CLOSED, text), encrypted)
        return Protection(Finding(Guard.UNKNOWN, error.failure.text, _ADVICE), encrypted)
    except CoordinationError as error:
        return Protection(Finding(Guard.UNKNOWN, str(error), _ADVICE), encrypted)
    return Protection(Finding(Guard.OPEN, "etcd accepts a login without a name", _ADVICE), encrypted)
