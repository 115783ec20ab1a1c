"""Runs the conformance kit on servers that contain other data: it changes none of that data, and removes its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from parley.consensus.conformance.__main__ import find_harness, main
from parley.consensus.registry import create_backend
from parley.consensus.zookeeper.address import parse
from parley.consensus.zookeeper.connection import synchronous_client
from tests.support.stores.consul import ConsulServers, consul_servers
from tests.support.stores.etcd import EtcdServers, etcd_servers
from tests.support.stores.servers import Servers
from tests.support.stores.zookeeper import ZookeeperServers, zookeeper_servers

pytestmark = pytest.mark.system


@pytest.fixture(
    scope="module", params=[consul_servers, etcd_servers, zookeeper_servers], ids=lambda make: make.__name__
)
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    with request.param() as servers:
        yield servers


def all_keys(servers: Servers) -> list[str]:
    match servers:
        case EtcdServers():
            return servers.etcdctl("get", "--prefix", "", "--keys-only").split()
        case ConsulServers():
            return [str(key) for key in servers.ask(servers.nodes[0], "/v1/kv/?keys") or ()]
        case ZookeeperServers():
            with synchronous_client(parse(servers.url, {}).endpoint) as client:
                return [str(name) for name in client.get_children("/")]
    raise AssertionError(servers)


async def test_a_harness_that_was_not_started_deletes_nothing(servers: Servers) -> None:
    path, _, query = servers.url.partition("?")
    url = f"{path}/{secrets.token_hex(8)}?{query}"
    async with create_backend(url) as client:
        await client.put("mine", b"1")
        await find_harness(url)().stop()
        await find_harness(servers.url)().stop()
        assert await client.get("mine")


def test_nothing_is_left(servers: Servers, capfd: pytest.CaptureFixture[str]) -> None:
    before = all_keys(servers)
    names = ["kv-exact", "watch-outlives-disconnection", "store-restarted"]
    if isinstance(servers, ConsulServers):  # otherwise an idle client notices it only after 20 s
        names.append("store-wiped-is-refused")
    arguments = [word for name in names for word in ("--check", name)]
    assert main([servers.url, *arguments]) == 0
    assert f"{len(names)} passed" in capfd.readouterr().out
    assert sorted(all_keys(servers)) == sorted(before)
