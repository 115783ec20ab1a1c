"""Listeners: the addresses that a broker listens on, and the addresses that it advertises.

``listeners`` and ``advertised.listeners`` are lists of ``NAME://host:port``; ``listener.security.protocol.map`` maps
names to security protocols. Names are not case-sensitive, as in ``listener.name.<name>.<key>``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from parley.broker.config.errors import Problem
from parley.broker.config.key_definition import split_list
from parley.light_dataclasses import dataclass

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""The security protocols of listeners, by Kafka's names."""

_ADDRESS = re.compile(r"([^:/]+)://(?:\[([0-9a-zA-Z:.%_-]*)\]|([0-9a-zA-Z.%_-]*)):([0-9]{1,9})")
_FORM = "name://host:port, separated by commas"
_UNROUTABLE = ("0.0.0.0", "::", "0:0:0:0:0:0:0:0")


@dataclass(frozen=True, slots=True)
class ListenerAddress:
    """The address of a listener. An empty host means every interface, or this machine's name if advertised. Port 0
    means any free port."""

    name: str
    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"

    @property
    def is_tls(self) -> bool:
        """True if connections use TLS."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def is_sasl(self) -> bool:
        """True if clients must log in."""
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def at(self, *, host: str | None = None, port: int | None = None) -> ListenerAddress:
        """Return a copy of this address with another host or port."""
        return replace(self, host=self.host if host is None else host, port=self.port if port is None else port)


def parse_protocol_map(text: str) -> dict[str, str]:
    """Parse ``listener.security.protocol.map``. Returns the protocol of each listener name, both in upper case.

    Raises Problem if the text is malformed.
    """
    protocols: dict[str, str] = {}
    for pair in split_list(text):
        name, separator, protocol = pair.partition(":")
        name, protocol = name.strip().upper(), protocol.strip().upper()
        if not separator or not name or protocol not in PROTOCOLS or name in protocols:
            allowed = f"name:protocol, separated by commas, each name once; protocols are {', '.join(PROTOCOLS)}"
            raise Problem("listener.security.protocol.map", text, allowed)
        protocols[name] = protocol
    return protocols


def parse_listeners(key: str, texts: Iterable[str], protocols: Mapping[str, str]) -> tuple[ListenerAddress, ...]:
    """Parse the listeners in the value of ``key``. ``protocols`` contains the protocol of each listener name.

    Raises Problem if there is no listener, if a listener is malformed or has no protocol, or if two listeners have the
    same name. Does not compare their ports; call ``check_ports`` for that.
    """
    listeners = tuple(_parse_listener(key, text, protocols) for text in texts)
    if not listeners:
        raise Problem(key, "", f"at least one of {_FORM}")
    names = [listener.name for listener in listeners]
    if len(set(names)) < len(names):
        raise Problem(key, ",".join(texts), "listeners with different names")
    return listeners


def parse_shared(
    key: str, texts: Sequence[str], protocols: Mapping[str, str], bound: Sequence[ListenerAddress]
) -> tuple[ListenerAddress, ...]:
    """Parse the addresses that all brokers of a machine share. Each belongs to a listener in ``bound``.

    Raises Problem if an address is malformed, has no port, uses the port of another address, or belongs to no listener.
    """
    if not texts:
        return ()
    shared = parse_listeners(key, texts, protocols)
    names = {listener.name for listener in bound}
    for listener in shared:
        if listener.name not in names:
            raise Problem(key, str(listener), f"among the names in listeners: {', '.join(sorted(names))}")
        if not listener.port:
            raise Problem(key, str(listener), "an address with a port, because all brokers use the same one")
    check_ports(key, (*bound, *shared))
    return shared


def check_ports(key: str, listeners: Iterable[ListenerAddress]) -> None:
    """Raise Problem if two listeners use the same port, unless one is IPv4 and the other IPv6."""
    by_port: dict[int, list[ListenerAddress]] = {}
    for listener in listeners:
        if listener.port:
            by_port.setdefault(listener.port, []).append(listener)
    for same in by_port.values():
        versions = {":" in listener.host for listener in same if listener.host}
        if len(same) > 2 or (len(same) == 2 and len(versions) < 2):
            raise Problem(key, ",".join(map(str, same)), "listeners with different ports")


def check_advertised(
    key: str,
    advertised: Iterable[ListenerAddress],
    bound: Iterable[ListenerAddress],
    shared: Iterable[ListenerAddress],
) -> None:
    """Raise Problem if an advertised address cannot lead clients to this broker.

    That is the case if the host is a wildcard such as 0.0.0.0, if no listener in ``bound`` has the address's name, or
    if the address is in ``shared``, because it may lead to another broker. ``key`` is the configuration key for the
    message.
    """
    shared_addresses = {(each.host, each.port) for each in shared}
    names = {listener.name for listener in bound}
    for listener in advertised:
        if listener.host in _UNROUTABLE:
            raise Problem(key, str(listener), f"an address that clients can connect to, which {listener.host} is not")
        if (listener.host, listener.port) in shared_addresses:
            raise Problem(key, str(listener), "an address of this broker alone, not one of bootstrap.listeners")
        if listener.name not in names:
            raise Problem(key, str(listener), f"among the names in listeners: {', '.join(sorted(names))}")


def inter_broker_listener(
    values: Mapping[str, Any], given: Mapping[str, str], bound: tuple[ListenerAddress, ...]
) -> str:
    """Return the name of the listener that brokers use to connect to each other.

    ``inter.broker.listener.name`` or ``security.inter.broker.protocol`` selects it. ``values`` contains the parsed
    values by attribute, and ``given`` the keys that the operator has set. Raises Problem if no listener matches.
    """
    name = values["inter_broker_listener_name"]
    if name is not None:
        if name.upper() not in {listener.name for listener in bound}:
            raise Problem("inter.broker.listener.name", name, "the name of one of the listeners")
        return str(name.upper())
    protocol = values["security_inter_broker_protocol"]
    for listener in bound:
        if listener.protocol == protocol:
            return listener.name
    is_chosen = "security.inter.broker.protocol" in given
    if not is_chosen and bound and all(listener.is_tls or listener.is_sasl for listener in bound):
        return bound[0].name  # a broker without an open listener does not need the key, unlike in Kafka
    protocols = ", ".join(f"{listener.name} is {listener.protocol}" for listener in bound)
    raise Problem(
        "security.inter.broker.protocol",
        protocol,
        f"the protocol of one of the listeners ({protocols}); or leave it out, and set inter.broker.listener.name to "
        "the listener that the brokers use",
    )


def _parse_listener(key: str, text: str, protocols: Mapping[str, str]) -> ListenerAddress:
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        raise Problem(key, text, _FORM)
    if int(match[4]) > 65535:
        raise Problem(key, text, f"{_FORM}; the port is a number from 0 to 65535")
    name = match[1].upper()
    protocol = protocols.get(name)
    if protocol is None:
        known = ", ".join(protocols)
        raise Problem(key, text, f"a listener whose name has a protocol in listener.security.protocol.map: {known}")
    return ListenerAddress(name, protocol, match[2] if match[2] is not None else match[3], int(match[4]))
