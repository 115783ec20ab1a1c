"""``parley zookeeper-security-migration``: set the ACLs of a cluster's znodes, as Kafka's tool of this name did."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from parley.tools.cli.app import App
from parley.tools.cli.common_options import client_properties
from parley.tools.cli.invocation import CommandError, silence_store_clients

_COMMAND = (
    "parley zookeeper-security-migration --zookeeper.acl {} --zookeeper.connect zk1:2181/kafka "
    "--user parley --password-file /etc/parley/zookeeper-password"
)
_EXAMPLES = [
    (_COMMAND.format("secure"), "restrict access to this user"),
    (_COMMAND.format("unsecure"), "allow access to everyone again"),
]

app = App(
    "Restrict access to a cluster's tree in ZooKeeper to one user, or allow it to everyone again.\n\n"
    "To restrict it, restart the brokers one by one with acl=true and the user in coordination.url, then run this "
    "with `secure` as the same user. To allow it, restart the brokers without acl=true, then run this with `unsecure` "
    "as that user.",
    examples=_EXAMPLES,
)


class Acl(StrEnum):
    """Who may access the tree: one user (SECURE), or every client (UNSECURE)."""

    SECURE = "secure"
    UNSECURE = "unsecure"


@app.only_command()
def migrate(
    acl: Annotated[
        Acl,
        typer.Option(
            "--zookeeper.acl", help="Restrict access to one user (secure) or allow it to everyone (unsecure)."
        ),
    ],
    connect: Annotated[
        str, typer.Option("--zookeeper.connect", help="ZooKeeper's servers: host:port,host:port/chroot.")
    ] = "localhost:2181",
    connection_timeout_ms: Annotated[
        int, typer.Option("--zookeeper.connection.timeout", help="How long to wait for a server, in ms.")
    ] = 30_000,
    session_timeout_ms: Annotated[
        int, typer.Option("--zookeeper.session.timeout", hidden=True, help="Accepted for compatibility.")
    ] = 30_000,
    path_check: Annotated[
        bool, typer.Option("--enable.path.check", help="Fail if the tree does not exist, instead of only reporting it.")
    ] = False,
    tls_config: Annotated[
        Path | None,
        typer.Option("--zk-tls-config-file", help="Properties file with Kafka's zookeeper.ssl.* keys."),
    ] = None,
    user: Annotated[str, typer.Option(help="The ZooKeeper user.")] = "",
    password_file: Annotated[str, typer.Option(help="File with the user's password.")] = "",
    auth: Annotated[str, typer.Option(help="Authentication scheme: digest or sasl.")] = "digest",
) -> None:
    """Restrict or allow access to the tree."""
    from parley.consensus.errors import CoordinationError
    from parley.consensus.registry import configured_url
    from parley.consensus.zookeeper.address import parse
    from parley.consensus.zookeeper.configured_address import secrets
    from parley.consensus.zookeeper.tree_acls import NoTree, set_acls

    silence_store_clients()
    config = client_properties(tls_config)
    config |= {"zookeeper.connect": connect, "zookeeper.connection.timeout.ms": str(connection_timeout_ms)}
    given = {"user": user, "password_file": password_file, "auth": auth, **secrets(config)}
    try:
        address = parse(configured_url(config), {name: value for name, value in given.items() if value})
        count = set_acls(address, secure=acl is Acl.SECURE)
    except NoTree as error:
        if path_check:
            raise CommandError(str(error)) from error
        print(f"{error}: nothing to do.", file=sys.stderr)
        return
    except CoordinationError as error:
        raise CommandError(str(error)) from error
    print(f"{acl.value}: {count} nodes below {address.root}.")
