"""Ports of this machine that other processes use.

If the usual port of the metrics is taken, a broker without a file serves them at any free port. A listener for clients
keeps its port, which clients know: the command that starts the broker fails."""

from __future__ import annotations

import errno
import socket
import sys


def free_or_any(address: str) -> str:
    """Return the address of ``metrics.listener``, with port 0 (any free port) if its port is taken. In that case, print
    a line to standard error."""
    head, _, port = address.rpartition(":")
    if not is_taken(head.rpartition("//")[2].strip("[]"), int(port)):
        return address
    print(f"metrics.listener: port {port} is taken, so the metrics get any free port.", file=sys.stderr)
    return f"{head}:0"


def is_taken(host: str, port: int) -> bool:
    """Return True if another socket uses this port of the host. Returns False for any other error of the address, which
    the broker itself reports."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False
