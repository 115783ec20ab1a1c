"""Consul: every client goes through a proxy of its own, peers go straight to the agent.

This harness works on any agent whose address it is given, yours too, in a new folder for every check. What only he can
do who runs the server is done to the data and the connections instead: ``wipe`` deletes the folder, ``restart`` breaks
all connections. Parley's own tests run the checks on a server that is restarted and wiped in earnest.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlsplit, urlunsplit

from consensus.backend import Backend
from consensus.conformance.processes import ProcessHarness
from consensus.conformance.proxy import Proxy, Tap
from consensus.consul import ConsulBackend
from consensus.consul.address import Address
from consensus.consul.client import Client


class ConsulHarness(ProcessHarness):
    """A store in a new folder of a Consul that runs already.

    :param url: its address; not with TLS, which the proxies could not look into.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._base = url
        self._folder = ""
        self._clients: list[ProxiedBackend] = []

    @property
    def url(self) -> str:
        return self._at(urlsplit(self._base).netloc)

    @property
    def backend(self) -> str:
        return "consensus.consul:ConsulBackend"

    async def start(self) -> None:
        await super().start()
        self._folder = f"{Address.parse(self._base, {}).prefix}-conformance/{secrets.token_hex(8)}"

    async def stop(self) -> None:
        for client in self._clients:
            await client.close()
        self._clients.clear()
        if self._folder:
            await self._delete_folder()
        await super().stop()

    def client(self) -> Backend:
        endpoints = [urlsplit(endpoint) for endpoint in Address.parse(self._base, {}).endpoints]
        losses = Losses()
        proxies = [Proxy(str(each.hostname), each.port or 0, lambda: LossyTap(losses)) for each in endpoints]
        client = ProxiedBackend.from_url(self._at(",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)))
        client.proxies, client.losses = proxies, losses
        self._clients.append(client)
        return client

    async def cut(self, client: Backend) -> None:
        for proxy in _proxied(client).proxies:
            proxy.cut()

    async def restore(self, client: Backend) -> None:
        for proxy in _proxied(client).proxies:
            proxy.restore()

    async def lose_answer(self, client: Backend, *, applied: bool) -> None:
        _proxied(client).losses.next_write = applied

    async def wipe(self) -> None:
        await self._delete_folder()

    async def restart(self) -> None:
        for client in self._clients:
            for proxy in client.proxies:
                proxy.break_all()

    def _at(self, hosts: str) -> str:
        return urlunsplit(("consul", hosts, f"/{self._folder}", urlsplit(self._base).query, ""))

    async def _delete_folder(self) -> None:
        address = Address.parse(self.url, {})
        async with Client(address) as agent:
            await agent.call("DELETE", f"/v1/kv/{quote(address.prefix)}/?recurse", writes=True)


@dataclass(slots=True)
class Losses:
    """:ivar next_write: lose the answer to the next write, after the store applied it (True) or before (False)."""

    next_write: bool | None = None


class LossyTap(Tap):
    """One connection of a client, on which a write may get lost or its answer."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._losing = False

    def to_server(self, data: bytes) -> bytes | None:
        if self._losses.next_write is not None and data.startswith(b"PUT /v1/txn HTTP/"):
            self._losing, self._losses.next_write = self._losses.next_write, None
            return data if self._losing else None
        return data

    def to_client(self, data: bytes) -> bytes | None:
        return None if self._losing else data


class ProxiedBackend(ConsulBackend):
    """A client that takes its proxies with it when it is closed."""

    proxies: Sequence[Proxy] = ()
    losses: Losses

    async def close(self) -> None:
        await super().close()
        proxies, self.proxies = self.proxies, ()
        for proxy in proxies:
            await proxy.close()


def _proxied(client: Backend) -> ProxiedBackend:
    assert isinstance(client, ProxiedBackend)
    return client
