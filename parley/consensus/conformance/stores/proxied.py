"""A store on a running server: each check works below a separate path, and deletes it at the end.

Every client has separate proxies, which inject the faults. Peers, which are processes, connect to the server directly.
Faults that only the server's operator can cause are simulated on the data and the connections instead: ``wipe`` deletes
everything below the path, ``restart`` breaks all connections. Parley's own tests really restart and wipe servers.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from parley.consensus.backend import Backend
from parley.consensus.conformance.processes import ProcessHarness
from parley.consensus.conformance.proxy import Proxy, Tap
from parley.consensus.urls import split_url


@dataclass(slots=True)
class NextWrite:
    """Controls what happens to a client's next write."""

    lose: bool | None = None
    """True to break the connection after the store has applied the write, False to break it before the write arrives,
    None to let the write through."""

    def take(self) -> bool | None:
        """Return the value of ``lose`` for the current write, and let the next one through."""
        lose, self.lose = self.lose, None
        return lose


class LossyTap(Tap):
    """One connection of a client, which may lose the next write."""

    def __init__(self, write: NextWrite) -> None:
        self.write = write


class Proxied(Backend):
    """A mixin for a store's backend: the client also closes its proxies."""

    proxies: Sequence[Proxy] = ()
    write: NextWrite

    async def close(self) -> None:
        await super().close()  # type: ignore[safe-super]
        for proxy in self.proxies:
            await proxy.close()


class ProxiedHarness(ProcessHarness):
    """The harness of a store that has servers. The module of each store adds the parts that depend on the protocol.

    :param url: the address of the servers, without TLS, which the proxies could not read.
    """

    proxied: ClassVar[type[Proxied]]
    """The store's backend."""
    tap: ClassVar[type[LossyTap]]
    """The tap that detects the writes on a connection."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._base = split_url(url)
        self._path = ""
        self._clients: list[Proxied] = []

    @abstractmethod
    def path_for(self, path: str, name: str) -> str:
        """Return the path of the store of one check.

        :param path: the path of the address, without a trailing slash.
        :param name: a name that no other check uses.
        """

    @abstractmethod
    def endpoints(self) -> Iterable[str]:
        """Return the ``host:port`` of each server in ``url``."""

    @abstractmethod
    async def delete(self) -> None:
        """Delete the store at ``url``, and the parents that were created for it."""

    @property
    def url(self) -> str:
        return self._at(self._base.servers)

    async def start(self) -> None:
        await super().start()
        self._path = self.path_for(self._base.path.rstrip("/"), secrets.token_hex(8))

    async def stop(self) -> None:
        for proxy in self._all_proxies():
            await proxy.close()
        self._clients.clear()
        if self._path:  # otherwise a harness that failed to start would delete everything on the server
            await self.delete()
            self._path = ""
        await super().stop()

    def client(self) -> Backend:
        write = NextWrite()
        servers = [endpoint.rpartition(":") for endpoint in self.endpoints()]
        proxies = [Proxy(host.strip("[]"), int(port), lambda: self.tap(write)) for host, _, port in servers]
        client = self.proxied.from_url(self._at(",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)))
        client.proxies, client.write = proxies, write
        self._clients.append(client)
        return client

    async def cut(self, client: Backend) -> None:
        for proxy in _proxied(client).proxies:
            proxy.cut()

    async def restore(self, client: Backend) -> None:
        for proxy in _proxied(client).proxies:
            proxy.restore()

    async def lose_response(self, client: Backend, *, applied: bool) -> None:
        _proxied(client).write.lose = applied

    async def wipe(self) -> None:
        await self.delete()

    async def restart(self) -> None:
        for proxy in self._all_proxies():
            proxy.break_all()

    def _all_proxies(self) -> list[Proxy]:
        return [proxy for client in self._clients for proxy in client.proxies]

    def _at(self, hosts: str) -> str:
        query = f"?{self._base.query}" if self._base.query else ""
        return f"{self._base.scheme}://{hosts}{self._path}{query}"


def _proxied(client: Backend) -> Proxied:
    assert isinstance(client, Proxied)
    return client
