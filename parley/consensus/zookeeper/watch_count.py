"""The number of watches open on ZooKeeper's servers, from the four-letter word ``wchs``, which each server must
allow."""

from __future__ import annotations

import re
from contextlib import closing

from kazoo.hosts import collect_hosts

from parley.consensus.backend import WatchCount
from parley.consensus.zookeeper.connection import Endpoint, connect

TIMEOUT_S = 3.0
_TOTAL = re.compile(r"^Total watches:\s*([0-9]+)", re.MULTILINE)


def watch_count(endpoint: Endpoint) -> WatchCount:
    """Return the number of watches open on all servers of the address. It is unknown if any server does not report it.

    Blocks.
    """
    total, (servers, _) = 0, collect_hosts(endpoint.hosts)
    for host, port in servers:
        try:
            text = _read_wchs(endpoint, host, port)
        except OSError as error:
            return WatchCount(None, f"{host}:{port} does not report its watches: {error}")
        if (match := _TOTAL.search(text)) is None:
            return WatchCount(None, f"{host}:{port} does not report its watches: its 4lw.commands.whitelist lacks wchs")
        total += int(match[1])
    return WatchCount(total, f"ZooKeeper's wchs, of {len(servers)} server{'s' if len(servers) > 1 else ''}")


def _read_wchs(endpoint: Endpoint, host: str, port: int) -> str:
    with closing(connect(endpoint, host, port, TIMEOUT_S)) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.sendall(b"wchs")
        text = b""
        while part := connection.recv(4096):
            text += part
    return text.decode("utf-8", "replace")
