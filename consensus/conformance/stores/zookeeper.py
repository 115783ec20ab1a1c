"""ZooKeeper: peers are processes; faults are made by a proxy before each client.

Against a server that runs already, each check has a chroot of its own, which is deleted at the end. Its data cannot be
wiped nor the server restarted from here: the chroot is deleted and all connections are broken instead.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

from kazoo.exceptions import NoNodeError

from consensus.backend import Backend
from consensus.conformance.processes import ProcessHarness
from consensus.conformance.proxy import Proxy, Tap
from consensus.zookeeper import ZookeeperBackend
from consensus.zookeeper.address import parse
from consensus.zookeeper.connection import synchronous_client

_HEADER = struct.Struct("!iii")
_MULTI = 14
_LOG_ENTRY = b"/parley/log/c"


class ZookeeperHarness(ProcessHarness):
    """A store below a new chroot of a ZooKeeper that runs already.

    :param url: its address; not with TLS, which the proxies could not look into.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._base = url
        self._chroot = ""
        self._proxies: dict[Backend, list[_ZookeeperProxy]] = {}

    @property
    def url(self) -> str:
        return self._at(urlsplit(self._base).netloc)

    @property
    def backend(self) -> str:
        return "consensus.zookeeper:ZookeeperBackend"

    async def start(self) -> None:
        await super().start()
        self._chroot = f"{urlsplit(self._base).path.rstrip('/')}/conformance-{secrets.token_hex(8)}"

    async def stop(self) -> None:
        for proxies in self._proxies.values():
            for proxy in proxies:
                await proxy.close()
        self._proxies.clear()
        await asyncio.to_thread(self._delete, self._chroot)
        await super().stop()

    def client(self) -> Backend:
        hosts = [host.rpartition(":") for host in parse(self.url, {}).endpoint.hosts.split(",")]
        proxies = [_ZookeeperProxy(host.strip("[]"), int(port)) for host, _, port in hosts]
        client = _ProxiedBackend.from_url(self._at(",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)))
        client.proxies = self._proxies[client] = proxies
        return client

    async def cut(self, client: Backend) -> None:
        for proxy in self._proxies[client]:
            proxy.cut()

    async def restore(self, client: Backend) -> None:
        for proxy in self._proxies[client]:
            proxy.restore()

    async def lose_answer(self, client: Backend, *, applied: bool) -> None:
        for proxy in self._proxies[client]:
            proxy.lose = applied

    async def wipe(self) -> None:
        await asyncio.to_thread(self._delete, f"{self._chroot}/parley")

    async def restart(self) -> None:
        for proxies in self._proxies.values():
            for proxy in proxies:
                proxy.break_all()

    def _at(self, hosts: str) -> str:
        return urlunsplit(("zookeeper", hosts, self._chroot, urlsplit(self._base).query, ""))

    def _delete(self, path: str) -> None:
        with synchronous_client(parse(self.url, {}).endpoint) as client, suppress(NoNodeError):
            client.delete(path, recursive=True)


class _ProxiedBackend(ZookeeperBackend):
    """A client that takes its proxies with it when it is closed."""

    proxies: Sequence[Proxy] = ()

    async def close(self) -> None:
        await super().close()
        for proxy in self.proxies:
            await proxy.close()


class _ZookeeperProxy(Proxy):
    """A proxy that knows a write when it sees one.

    :ivar lose: break the connection at the next write: True: after ZooKeeper answered it, False: before it got there.
    """

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port, lambda: _ZookeeperTap(self))
        self.lose: bool | None = None


class _ZookeeperTap(Tap):
    def __init__(self, proxy: _ZookeeperProxy) -> None:
        self._proxy = proxy
        self._sent = _Packets()
        self._answered = _Packets()
        self._lost: int | None = None

    def to_server(self, data: bytes) -> bytes | None:
        for packet in self._sent.feed(data):
            if self._proxy.lose is None or len(packet) < _HEADER.size:
                continue
            _, xid, kind = _HEADER.unpack_from(packet)
            if kind == _MULTI and _LOG_ENTRY in packet:
                applied, self._proxy.lose = self._proxy.lose, None
                if not applied:
                    return None
                self._lost = xid
        return data

    def to_client(self, data: bytes) -> bytes | None:
        for packet in self._answered.feed(data):
            if self._lost is not None and struct.unpack_from("!i", packet, 4)[0] == self._lost:
                return None
        return data


class _Packets:
    """Finds the packets in one direction of a connection, each with its length before it."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The packets that are complete with these bytes."""
        self._rest += data
        while len(self._rest) >= 4 and len(self._rest) >= (end := 4 + int.from_bytes(self._rest[:4], "big")):
            packet = bytes(self._rest[:end])
            del self._rest[:end]
            yield packet
