"""The hosts of ACLs: an address, a range of addresses (CIDR), or ``*``.

Addresses are compared as addresses: ``0:0:0:0:0:0:0:1`` is ``::1``, and an IPv4 address mapped into IPv6 is the IPv4
address. A host that is not an address matches nothing, as in Kafka: brokers do not look up names.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Range = IPv4Network | IPv6Network

MAPPED_BITS = 96
"""The bits before the IPv4 address in an IPv6 address that it is mapped into."""


def is_range(host: str) -> bool:
    """True if the text is meant to be a range of addresses."""
    return "/" in host


def parse_range(host: str) -> Range | None:
    """Return the range of addresses; None if the text is not one. A range of mapped addresses is one of IPv4."""
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
    """Return the address, without the scope of a link-local one; None if the text is not an address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def canonical_host(host: str) -> str:
    """Return an address in the one form in which equal addresses are equal texts; any other text as it is."""
    address = parse_address(host)
    return host if address is None else str(address)
