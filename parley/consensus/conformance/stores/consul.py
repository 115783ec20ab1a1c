"""The conformance harness for Consul, with any agent."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from parley.consensus.conformance.stores.proxied import LossyTap, NextWrite, Proxied, ProxiedHarness
from parley.consensus.consul import ConsulBackend
from parley.consensus.consul.address import DEFAULT_PREFIX, Address
from parley.consensus.consul.http_client import Client


class _ConsulTap(LossyTap):
    def __init__(self, write: NextWrite) -> None:
        super().__init__(write)
        self._losing = False

    def to_server(self, data: bytes) -> bytes | None:
        if self.write.lose is not None and data.startswith(b"PUT /v1/txn HTTP/"):
            self._losing = bool(self.write.take())
            return data if self._losing else None
        return data

    def to_client(self, data: bytes) -> bytes | None:
        return None if self._losing else data


class _ProxiedConsul(Proxied, ConsulBackend):
    """A client that goes through the proxies of the harness."""


class ConsulHarness(ProxiedHarness):
    """A store in a new folder of a running Consul."""

    proxied = _ProxiedConsul
    tap = _ConsulTap

    @property
    def backend(self) -> str:
        return "parley.consensus.consul:ConsulBackend"

    def path_for(self, path: str, name: str) -> str:
        return f"{path or f'/{DEFAULT_PREFIX}'}-conformance/{name}"

    def endpoints(self) -> Iterable[str]:
        return [endpoint.partition("://")[2] for endpoint in Address.parse(self.url, {}).endpoints]

    async def delete(self) -> None:
        address = Address.parse(self.url, {})
        async with Client(address) as agent:
            await agent.call("DELETE", f"/v1/kv/{quote(address.prefix)}/?recurse", writes=True)
