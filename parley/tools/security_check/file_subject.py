"""Read a broker's properties file for the checks, with the files, the certificates and the store that it names."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from parley.broker.config import BrokerConfig, ConfigError
from parley.broker.config.listeners import ListenerAddress
from parley.broker.security.authorizer import load_authorizer_of
from parley.broker.security.tls.server import ServerTls, client_auth_of, refusal_of_own, server_tls
from parley.configuration.properties import read_properties
from parley.configuration.providers import read_configuration
from parley.consensus.errors import CoordinationError, EmptyStore
from parley.consensus.protection import Protection
from parley.consensus.registry import backend_factory, configured_url
from parley.consensus.store_move.store_lookup import open_existing
from parley.protocol.security.jaas import BadJaas, parse_jaas
from parley.tools.cli.invocation import CommandError
from parley.tools.security_check.subject import PROPERTIES_FILE, FileMode, Subject, Unchecked

STORE_MAX_S: Final = 20.0
_PROVIDED: Final = re.compile(r"\$\{[^}:]+:([^}:]+):([^}]*)\}")
_STORE_SECRETS: Final = ("password-file", "key-file", "key-password-file", "token-file")
_KEY_STORES: Final = ("ssl.keystore.location", "zookeeper.ssl.keystore.location")
_TRUST: Final = ("ssl.truststore.location", "ssl.crl.location")
_KEYS_OF_TOKENS: Final = "sasl.oauthbearer.jwks.endpoint.url"


def subject_of_file(path: Path, now: datetime) -> tuple[Subject, list[Unchecked]]:
    """Return the facts from the file, and what could not be checked. Raises ``CommandError`` if the file cannot be read
    or is not a valid configuration."""
    try:
        written = read_properties(path)
        config = BrokerConfig.from_properties(read_configuration(path))
        listeners = dict(_listeners_with_tls(config))
        load_authorizer_of(config)
    except OSError as error:
        raise CommandError(f"The file {path} cannot be read: {error.strerror}.") from error
    except (ConfigError, ValueError) as error:
        raise CommandError(f"{path}: {error}") from error
    store, unchecked = asyncio.run(_protection(config.given))
    subject = Subject(
        str(path),
        config,
        now,
        written=written,
        secret_files=list(_existing(_secret_files(path, written, config.given))),
        data_folders=[
            replace(each, is_reachable=_others_reach(each.path))
            for each in _existing(("log.dirs", folder) for folder in config.data_dirs)
        ],
        trust_files=list(_existing(_trust_files(path, config.given))),
        certificates={name: _time(tls.expires_at) for name, tls in listeners.items()},
        refused_between_brokers=_refusal_between_brokers(config, listeners),
        revocation_lists={name: _time(tls.lists_expire_at) for name, tls in listeners.items() if tls.lists_expire_at},
        store=store,
    )
    acls = Unchecked("the ACLs: they are in the cluster, not in the file (--bootstrap-server)", has_failed=False)
    return subject, [*unchecked, acls]


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _listeners_with_tls(config: BrokerConfig) -> Iterator[tuple[str, ServerTls]]:
    listeners = [*config.bound]
    if config.metrics_is_tls and (address := config.metrics_address) is not None:
        listeners.append(ListenerAddress("METRICS", "SSL", *address))
    for listener in listeners:
        if listener.is_tls:
            yield str(listener), server_tls(listener, config)


def _refusal_between_brokers(config: BrokerConfig, listeners: Mapping[str, ServerTls]) -> str:
    address = next(each for each in config.bound if each.name == config.inter_broker_listener)
    tls = listeners.get(str(address))
    return "" if tls is None else refusal_of_own(tls.settings, client_auth_of(address, config)) or ""


def _secret_files(path: Path, written: Mapping[str, str], given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the files with secrets, as pairs of the setting that names the file and its path."""
    yield PROPERTIES_FILE, str(path)
    for key, text in given.items():
        if key.endswith(_KEY_STORES) and text:
            yield key, text
        if key.endswith("sasl.jaas.config"):
            for keytab in _keytabs(text):
                yield f"keyTab of {key}", keytab
    for key, text in written.items():
        for provided, name in _PROVIDED.findall(text):
            yield key, os.path.join(provided, name) if os.path.isdir(provided) else provided
    for option, file in parse_qsl(given.get("coordination.url", "").partition("?")[2]):
        if option in _STORE_SECRETS:
            yield f"{option} of coordination.url", file


def _trust_files(path: Path, given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the files that decide which clients may log in, and their folders, as pairs of the setting that names the
    file and the path.

    Key stores are checked as secrets, so only their folders are included.
    """
    files = [(PROPERTIES_FILE, str(path))]
    files += [(key, text) for key, text in given.items() if key.endswith(_TRUST) and text]
    for key, text in given.items():
        url = urlsplit(text) if key.endswith(_KEYS_OF_TOKENS) else None
        if url is not None and url.scheme == "file":
            files.append((key, unquote(url.path)))
    yield from files
    files += [(key, text) for key, text in given.items() if key.endswith(_KEY_STORES) and text]
    for key, file in files:
        yield f"the folder of {key}", os.path.dirname(os.path.abspath(file))


def _keytabs(line: str) -> Iterator[str]:
    """Yield the path of the Kerberos key file that each login module of a JAAS entry names, or an empty string."""
    with suppress(BadJaas):
        for module in parse_jaas(line):
            yield re.sub("^file:", "", module.options.get("keyTab", ""), flags=re.IGNORECASE)


def _existing(files: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> Iterator[FileMode]:
    seen = set()
    for key, path in files:
        if path not in seen and os.path.exists(path):
            seen.add(path)
            yield FileMode(key, path, os.stat(path).st_mode)


def _others_reach(path: str) -> bool:
    """Return True if every user of the machine may enter all folders above a path."""
    return all(folder.stat().st_mode & 0o001 for folder in Path(path).resolve().parents)


async def _protection(given: Mapping[str, str]) -> tuple[Protection | None, list[Unchecked]]:
    """Return the store's protection, or None and the reason if the store cannot be reached."""
    try:
        async with asyncio.timeout(STORE_MAX_S):
            backend = await open_existing(configured_url(given), backend_factory(given))
            try:
                return await backend.protection(), []
            finally:
                await backend.close()
    except EmptyStore:
        return None, [Unchecked("the store: no broker has used it yet", has_failed=False)]
    except TimeoutError:
        return None, [Unchecked(f"the store: it did not respond within {STORE_MAX_S:g} s")]
    except CoordinationError as error:
        return None, [Unchecked(f"the store: {error}")]
