"""Gather facts from a running cluster: settings and ACLs as a client, and what clients without an account may do."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from parley.broker.config import BrokerConfig, ConfigError
from parley.broker.security.acls.bindings import AclBinding, AclFilter
from parley.configuration.tls import tls_settings
from parley.protocol.client import Client, NoBrokerListens, parse_bootstrap
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.link import Address, NotAuthenticated
from parley.protocol.security.client_security import PLAINTEXT, ClientSecurity
from parley.tools.cli import acls, configs
from parley.tools.cli.cluster_client import on_cluster
from parley.tools.cli.common_options import client_properties
from parley.tools.cli.invocation import CommandError
from parley.tools.security_check.subject import Subject, Unchecked

STRANGER_S: Final = 30.0
_CLIENT_S: Final = 2 * STRANGER_S
"""The timeouts of the client without an account, in seconds. They exceed ``STRANGER_S``, so that ``STRANGER_S`` limits
the wait."""
_ENDED: Final = (ErrorCode.NETWORK_EXCEPTION, ErrorCode.BROKER_NOT_AVAILABLE)
"""Errors that mean that a broker has rejected the client by closing the connection."""
_DEFAULT, _UNKNOWN = 5, 0
_HIDDEN: Final = "${hidden}"
"""The placeholder for the value of a secret that is set. The checks treat it like a secret from a config provider."""
_TLS: Final = ("SSL", "SASL_SSL")


def subjects_of_cluster(
    bootstrap: str, command_config: Path | None, now: datetime
) -> tuple[list[Subject], list[Unchecked]]:
    """Return the facts about each broker, and what could not be checked. Raises ``CommandError`` if no broker responds,
    or settings cannot be evaluated."""
    properties = client_properties(command_config)
    strangers, unchecked = asyncio.run(_strangers(bootstrap))
    elsewhere = "the store and the brokers' files: check the properties file on a broker's machine"
    unchecked.append(Unchecked(elsewhere, has_failed=False))
    expired = dict(_expired_at(bootstrap, properties, now))
    usable = [str(each) for each in parse_bootstrap(bootstrap) if each not in expired] if expired else [bootstrap]
    if not usable:
        unchecked.append(Unchecked("the cluster: clients refuse an expired certificate; name another broker"))
        return [_unknown(str(each), now, {str(each): expiry}) for each, expiry in expired.items()], unchecked

    async def ask(client: Client) -> list[Subject]:
        every_acl: list[AclBinding] | None = None
        try:
            every_acl = await acls.select(client, AclFilter())
        except (CommandError, KafkaError) as error:
            unchecked.append(Unchecked(f"the ACLs: {error}"))
        subjects = []
        for broker in sorted((await client.metadata([])).brokers, key=lambda each: each.node_id):
            name, address = f"broker {broker.node_id}", Address(broker.host, broker.port)
            certificates: dict[str, datetime] = {}
            if _is_tls(properties):
                try:
                    certificates[str(address)] = await asyncio.to_thread(certificate_expiry, *address, properties)
                except (OSError, ValueError) as error:
                    unchecked.append(Unchecked(f"when the certificate of {address} expires: {error}"))
            try:
                settings = await configs.describe(
                    client, configs.Entity("broker", str(broker.node_id)), all_settings=True
                )
            except NotAuthenticated as error:
                unchecked.append(Unchecked(f"the settings of {name}: {error.message}"))
                subjects.append(_unknown(name, now, certificates))
                continue
            config, written = _config_of(broker.node_id, settings)
            subjects.append(
                Subject(
                    name,
                    config,
                    now,
                    written=written,
                    certificates=certificates,
                    acls=every_acl,
                    strangers=strangers,
                )
            )
        return subjects

    return on_cluster(",".join(usable), properties, ask), unchecked


def _is_tls(properties: Mapping[str, str]) -> bool:
    return properties.get("security.protocol") in _TLS


def _expired_at(bootstrap: str, properties: Mapping[str, str], now: datetime) -> Iterator[tuple[Address, datetime]]:
    """Yield the bootstrap addresses whose certificate has expired, and the time at which it expired. Blocks.

    The client would give up at the first such address. Addresses that cannot be used for another reason are left to the
    client, which reports the reason.
    """
    with suppress(ValueError):
        for address in parse_bootstrap(bootstrap) if _is_tls(properties) else ():
            with suppress(OSError, ValueError):
                expiry = certificate_expiry(*address, properties)
                if expiry <= now:
                    yield address, expiry


def _unknown(name: str, now: datetime, certificates: Mapping[str, datetime]) -> Subject:
    """Return a subject of which only the certificate is known, because no client can connect to the broker."""
    return Subject(name, BrokerConfig.from_properties({}), now, certificates=certificates, has_settings=False)


def _config_of(broker: int, settings: list[Any]) -> tuple[BrokerConfig, dict[str, str]]:
    """Return a broker's configuration from DescribeConfigs, and placeholders for the secrets that are set. Raises
    ``CommandError`` if the configuration is invalid."""
    own = [each for each in settings if each.config_source != _DEFAULT]
    given = {each.name: each.value for each in own if each.value is not None and not each.is_sensitive}
    try:
        config = BrokerConfig.from_properties(given)
    except ConfigError as error:
        raise CommandError(f"The settings of broker {broker} cannot be evaluated: {error}") from error
    return config, {each.name: _HIDDEN for each in own if each.is_sensitive}


async def _strangers(bootstrap: str) -> tuple[list[str], list[Unchecked]]:
    """Try what clients without an account may do, with and without TLS. Returns what they may do, and what could not be
    tried."""
    doors = {
        "neither TLS nor a login": PLAINTEXT,
        "TLS and no login": ClientSecurity(await asyncio.to_thread(_trusting_context, {})),
    }
    served, unchecked = [], []
    for name, security in doors.items():
        try:
            async with (
                asyncio.timeout(STRANGER_S),
                Client(bootstrap, security=security, timeout=_CLIENT_S, connect_timeout=_CLIENT_S) as client,
            ):
                topics = len((await client.metadata()).topics)
        except TimeoutError:
            unchecked.append(Unchecked(f"clients with {name}: no response within {STRANGER_S:g} s"))
        except (KafkaError, OSError, ValueError) as error:
            is_refused = isinstance(error, KafkaError) and error.code in _ENDED
            if not is_refused or isinstance(error, NoBrokerListens):
                unchecked.append(Unchecked(f"clients with {name}: {error}"))
        else:
            served.append(f"{bootstrap} serves clients with {name}; they see {topics} topics")
    return served, unchecked


def _trusting_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Return a TLS context that accepts any server certificate, and uses the client's own certificate if it has one.
    Blocks."""
    context = tls_settings(properties).client_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def certificate_expiry(host: str, port: int, properties: Mapping[str, str]) -> datetime:
    """Return the time at which a listener's certificate expires, even if its issuer is not trusted. Blocks.

    Raises OSError if the listener cannot be reached, and ValueError if it presents no valid certificate.
    """
    from cryptography.x509 import load_der_x509_certificate

    with (
        socket.create_connection((host, port), STRANGER_S) as connection,
        # This connection reads only the date. The client that requests the settings verifies the certificate.
        _trusting_context(properties).wrap_socket(connection, server_hostname=host) as tls,
    ):
        found = tls.getpeercert(binary_form=True)
    if found is None:
        raise ValueError("the listener presents no certificate")
    return load_der_x509_certificate(found).not_valid_after_utc.astimezone(UTC)
