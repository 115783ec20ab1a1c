"""The conformance harness for ZooKeeper, with any server."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

from kazoo.exceptions import NoNodeError

from parley.consensus.conformance.stores.proxied import LossyTap, NextWrite, Proxied, ProxiedHarness
from parley.consensus.zookeeper import ZookeeperBackend
from parley.consensus.zookeeper.address import parse
from parley.consensus.zookeeper.connection import synchronous_client

_HEADER = struct.Struct("!iii")
_MULTI = 14
_LOG_ENTRY = b"/parley/log/c"


class _ZookeeperTap(LossyTap):
    def __init__(self, write: NextWrite) -> None:
        super().__init__(write)
        self._sent = _Packets()
        self._answered = _Packets()
        self._lost: int | None = None

    def to_server(self, data: bytes) -> bytes | None:
        for packet in self._sent.feed(data):
            if self.write.lose is None or len(packet) < _HEADER.size:
                continue
            _, xid, kind = _HEADER.unpack_from(packet)
            if kind == _MULTI and _LOG_ENTRY in packet:
                if not self.write.take():
                    return None
                self._lost = xid
        return data

    def to_client(self, data: bytes) -> bytes | None:
        for packet in self._answered.feed(data):
            if self._lost is not None and struct.unpack_from("!i", packet, 4)[0] == self._lost:
                return None
        return data


class _ProxiedZookeeper(Proxied, ZookeeperBackend):
    """A client that goes through the proxies of the harness."""


class ZookeeperHarness(ProxiedHarness):
    """A store below a new chroot of a running ZooKeeper."""

    proxied = _ProxiedZookeeper
    tap = _ZookeeperTap

    @property
    def backend(self) -> str:
        return "parley.consensus.zookeeper:ZookeeperBackend"

    def path_for(self, path: str, name: str) -> str:
        return f"{path}/conformance-{name}"

    def endpoints(self) -> Iterable[str]:
        return parse(self.url, {}).endpoint.hosts.split(",")

    async def delete(self) -> None:
        await asyncio.to_thread(self._delete)

    def _delete(self) -> None:
        address = parse(self.url, {})
        with synchronous_client(address.endpoint) as client, suppress(NoNodeError):
            client.delete(address.parents[-1], recursive=True)


class _Packets:
    """Splits one direction of a connection into packets, each of which is preceded by its length."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield each packet that these bytes complete, without its length prefix."""
        self._rest += data
        while len(self._rest) >= 4 and len(self._rest) >= (end := 4 + int.from_bytes(self._rest[:4], "big")):
            packet = bytes(self._rest[:end])
            del self._rest[:end]
            yield packet
