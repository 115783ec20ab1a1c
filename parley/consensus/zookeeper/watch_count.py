"""What ZooKeeper's servers say of their watches: the four-letter word ``wchs``, which each server has to allow."""

from __future__ import annotations

import re
from contextlib import closing

from kazoo.hosts import collect_hosts

from parley.consensus.backend import WatchCount
from parley.consensus.zookeeper.connection import Endpoint, connect

TIMEOUT_S = 3.0
_TOTAL = re.compile(r"^Total watches:\s*([0-9]+)", re.MULTILINE)


def watch_count(endpoint: Endpoint) -> WatchCount:
    """The sum over the servers of the address. Blocks."""
    total, (servers, _) = 0, collect_hosts(endpoint.hosts)
    for host, port in servers:
        try:
            said = _ask(endpoint, host, port)
        except OSError as error:
            return WatchCount(None, f"{host}:{port} does not say: {error}")
        if (match := _TOTAL.search(said)) is None:
            return WatchCount(None, f"{host}:{port} does not say: its 4lw.commands.whitelist has no wchs")
        total += int(match[1])
    return WatchCount(total, f"ZooKeeper's wchs, of {len(servers)} server{'s' if len(servers) > 1 else ''}")


def _ask(endpoint: Endpoint, host: str, port: int) -> str:
    with closing(connect(endpoint, host, port, TIMEOUT_S)) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.sendall(b"wchs")
        said = b""
        while part := connection.recv(4096):
            said += part
    return said.decode("utf-8", "replace")
