"""Hosts of ACLs are compared as addresses."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from parley.broker.security.acls.hosts import canonical_host, parse_range


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("fe80::1%eth0", "fe80::1"),
        ("10.0.0.1", "10.0.0.1"),
        ("a-name", "a-name"),
    ],
)
def test_equal_addresses_are_equal_texts(text: str, canonical: str) -> None:
    assert canonical_host(text) == canonical


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("2001:db8::1/32", "2001:db8::/32"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::/0", "::/0"),
    ],
)
def test_ranges(text: str, expected: str) -> None:
    assert parse_range(text) == ip_network(expected)


@pytest.mark.parametrize("text", ["10.0.0.0/33", "10.0.0/8", "a-name/8", "/", "10.0.0.0/"])
def test_an_invalid_range_is_refused(text: str) -> None:
    assert parse_range(text) is None
