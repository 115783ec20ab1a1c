from __future__ import annotations

import pytest

from parley.consensus.errors import BadConfig
from parley.consensus.urls import ServerAddress, StoreUrl, parse_servers, split_url


def parse(servers: str) -> list[str]:
    return [str(each) for each in parse_servers(servers, default_port=7, source="key=value", expected="host:port")]


def test_a_server_is_a_host_with_an_optional_port() -> None:
    assert parse("h, h-2.example_org:1,10.0.0.1:65535") == ["h:7", "h-2.example_org:1", "10.0.0.1:65535"]
    assert parse_servers("h:8", default_port=7, source="", expected="") == (ServerAddress("h", 8),)


def test_ipv6_addresses_stand_in_brackets() -> None:
    assert parse("[::1],[::1]:2,[fe80::1%eth0]:3") == ["[::1]:7", "[::1]:2", "[fe80::1%eth0]:3"]


@pytest.mark.parametrize("servers", ["", ",", "h,", "h,,i", ":1", "h:", "h:x", "h i", "::1", "[::1", "u@h", "h:123456"])
def test_the_error_names_the_server_the_source_and_the_form(servers: str) -> None:
    with pytest.raises(BadConfig, match=r"^key=value: '.*' is not host:port; expected host:port$"):
        parse(servers)


@pytest.mark.parametrize("port", ["0", "65536"])
def test_a_port_is_1_to_65535(port: str) -> None:
    with pytest.raises(BadConfig, match=f"^key=value: {port} is not a port"):
        parse(f"h:{port}")


def test_absent_parts_are_empty() -> None:
    assert split_url("ETCD://[::1]:1,h:2/p/q?a=b#c") == StoreUrl("etcd", "[::1]:1,h:2", "/p/q", "a=b", "c")
    assert split_url("etcd://h") == StoreUrl("etcd", "h", "", "", "")
    assert split_url("h/p") == StoreUrl("", "h", "/p", "", "")
