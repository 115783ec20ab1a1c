"""The hosts of ACLs: an address, a range of addresses (CIDR), or ``*``.

Addresses are compared by value: ``0:0:0:0:0:0:0:1`` equals ``::1``, and an IPv4-mapped IPv6 address equals the IPv4
address. A host that is not an address matches nothing, as in Kafka: brokers do not look up names.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Range = IPv4Network | IPv6Network

MAPPED_BITS = 96
"""The number of bits before the IPv4 address in an IPv4-mapped IPv6 address."""


def is_range(host: str) -> bool:
    """Return True if the host is meant to be a range of addresses."""
    return "/" in host


def parse_range(host: str) -> Range | None:
    """Return the range of addresses, or None if the text is not a range. A range of IPv4-mapped addresses becomes an
    IPv4 range."""
    try:
        found = ip_network(host, strict=False)
    except ValueError:
        return None
    if isinstance(found, IPv6Network) and found.prefixlen >= MAPPED_BITS:
        mapped = found.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, found.prefixlen - MAPPED_BITS))
    return found


@lru_cache(maxsize=10_000)
def parse_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address without the scope of a link-local address, or None if the text is not an address. An
    IPv4-mapped IPv6 address becomes an IPv4 address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def canonical_host(host: str) -> str:
    """Return the canonical form of an address, so that equal addresses are equal strings. Any other text is returned
    unchanged."""
    address = parse_address(host)
    return host if address is None else str(address)
