"""The first phase of startup: binds the sockets of all listeners."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from functools import partial

from parley.broker.config.listeners import ListenerAddress
from parley.broker.metadata.types import Endpoint
from parley.broker.startup.environment import Environment
from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bound:
    """The listeners' sockets by name, and the addresses that this broker advertises."""

    sockets: Mapping[str, socket.socket]
    endpoints: tuple[Endpoint, ...]
    open_shared: Mapping[str, Callable[[], socket.socket]]
    """Functions that bind the addresses shared with other brokers (``bootstrap.listeners``), by listener. They raise
    OSError if an address cannot be bound."""


async def bind_listeners(environment: Environment) -> Bound:
    """Bind every listener. Afterwards the ports are known, and no other process can take them. Raises OSError if an
    address cannot be bound, including those shared with other brokers (``bootstrap.listeners``)."""
    environment.health.starting("binding its listeners")
    config = environment.config
    sockets = {}
    for listener in config.bound:
        sock = _binder(environment, listener)()
        environment.undo.callback(sock.close)
        sockets[listener.name] = sock
    open_shared = {each.name: _binder(environment, each, is_shared=True) for each in config.bootstrap}
    for bind in open_shared.values():
        bind().close()  # a wrong address fails here, and not only after the broker has opened its logs
    ports = {name: sock.getsockname()[1] for name, sock in sockets.items()}
    hostname = ""
    if any(not each.host for each in config.advertised):  # a DNS lookup may be slow
        hostname = await asyncio.get_running_loop().run_in_executor(None, socket.getfqdn)
    advertised = config.advertised_at(ports, hostname)
    endpoints = tuple(Endpoint(each.name, each.protocol, each.host, each.port) for each in advertised)
    return Bound(sockets, endpoints, open_shared)


def _binder(environment: Environment, address: ListenerAddress, **options: bool) -> Callable[[], socket.socket]:
    own = environment.config.for_listener(address.name)
    return partial(
        environment.bind,
        address.host,
        address.port,
        send_buffer=own.socket_send_buffer_bytes,
        receive_buffer=own.socket_receive_buffer_bytes,
        **options,
    )
