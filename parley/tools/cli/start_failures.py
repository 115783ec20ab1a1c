"""Why a broker did not start or has stopped: the text for the operator, and the exit code.

Rules: a text is one line without secrets, and says what to do. If the store is down, it does not suggest another
address. ``parley start`` imports this module before anything can fail: a process without file descriptors imports
nothing.
"""

from __future__ import annotations

import errno
import logging
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from parley.tools.cli.invocation import DISK_FAILED, FAILED, STARVED

if TYPE_CHECKING:
    from parley.broker.config import BrokerConfig
    from parley.broker.config.listeners import ListenerAddress
    from parley.broker.server import BrokerServer
    from parley.consensus.errors import CoordinationError

_PLAIN_WORD: Final = re.compile("[a-z]+")
_OF_ADDRESSES: Final = {
    errno.EADDRINUSE: "Is another broker running? Stop it, or give this broker another address (the key {key})",
    errno.EADDRNOTAVAIL: "This machine does not have this address. Listen on one that it has (the key {key}; "
    "advertised.listeners may have others)",
    errno.EACCES: "This user may not listen on a port below 1024. Use a higher port (the key {key})",
}
"""The advice for each error of a listener's address; ``key`` is the setting that names the address."""
_UNKNOWN_NAME: Final = (
    "Listen on an address of this machine (the key {key}; advertised.listeners has the names for clients)"
)


def why_it_ended(server: BrokerServer) -> tuple[str | None, int]:
    """Return why a running broker stopped (None if a signal stopped it), and the exit code."""
    from parley.broker.startup.cluster_joining import COORDINATION

    if not server.failed.is_set():
        return None, 0
    if server.starved:
        return f"{server.starved} The other brokers have taken over, if there are any; start it again.", STARVED
    if server.parts.logs.online():
        problem = server.health.problem(COORDINATION)
        return _sentence(f"the broker is {problem}" if problem else "the broker failed; the log above says why"), FAILED
    return "every log directory has failed; the log above says why.", DISK_FAILED


def exit_code_of(error: Exception) -> int:
    """Return the exit code for a start that failed with ``error``."""
    from parley.storage.log_manager import NoLogDirectory
    from parley.storage.resource_exhaustion import reserve_for

    if reserve_for(error) is not None:
        return STARVED
    return DISK_FAILED if isinstance(error, NoLogDirectory) else FAILED


def why_not_started(error: Exception, config: BrokerConfig) -> str:
    """Return one line, without secrets, that says what failed and what to do. Logs an unexpected error."""
    from parley.broker.config import Password
    from parley.broker.logging.lines import secrets_in

    text, hides_words = _reason(error, config), not _is_about_a_login_or_certificate(error)
    for secret in sorted(secrets_in(config), key=len, reverse=True):
        if hides_words or not _PLAIN_WORD.fullmatch(secret):
            text = text.replace(secret, Password.HIDDEN)
    return text


def _is_about_a_login_or_certificate(error: Exception) -> bool:
    """Return True if the error concerns a login or a certificate. The texts of such errors contain no secret.

    A secret may happen to be a word of the text, as in "the password is wrong". Hiding that word would garble the text,
    and would reveal the secret.
    """
    from parley.broker.config import ConfigError
    from parley.configuration.key_stores import BadKeyStore
    from parley.protocol.security.client_security import BadSecurity
    from parley.protocol.security.jaas import BadJaas

    return isinstance(error, ConfigError) and isinstance(error.__cause__, (BadKeyStore, BadSecurity, BadJaas))


def _reason(error: Exception, config: BrokerConfig) -> str:
    from parley.broker.config import ConfigError
    from parley.broker.membership.identity import NoBrokerId
    from parley.broker.membership.joining import DuplicateBrokerId
    from parley.consensus.errors import CoordinationError
    from parley.storage.directory_loader import MisplacedLog, TwinLogs
    from parley.storage.log_directory import DirectoryInUse
    from parley.storage.log_manager import NoLogDirectory
    from parley.storage.meta_properties import InconsistentIdentity, MalformedIdentity
    from parley.storage.resource_exhaustion import reserve_for

    if (reserve := reserve_for(error)) is not None:
        from parley.broker.runtime.exhaustion_watch import ADVICE

        return f"The process has run out of {reserve.name}. {ADVICE[reserve.name]}"
    if isinstance(error, OSError) and error.filename is None:
        advice = _UNKNOWN_NAME if isinstance(error, socket.gaierror) else _OF_ADDRESSES.get(error.errno or 0)
        if advice:
            reason = str(error.strerror or error)
            setting = _another_address(reason, error, config)
            if error.errno == errno.EADDRINUSE and (folder := _another_folder(config)):
                return (
                    f"{_sentence(reason)} Another broker runs in {', '.join(config.data_dirs)}. Stop it, or give this "
                    f"broker another address and a folder of its own: --override {setting} --override {folder}"
                )
            return f"{_sentence(reason)} {advice.format(key=setting.partition('=')[0])}: --override {setting}"
    if isinstance(error, OSError):
        where = error.filename or ", ".join(config.data_dirs)
        return f"{where} cannot be used: {error.strerror or error}. Correct log.dirs or the permissions of the folder."
    if isinstance(error, CoordinationError):
        return _of_the_store(error, config)
    explained = (DirectoryInUse, DuplicateBrokerId, InconsistentIdentity, MalformedIdentity)
    if isinstance(error, (*explained, NoLogDirectory, TwinLogs, MisplacedLog, NoBrokerId, ConfigError)):
        return _sentence(error)
    logging.getLogger(__name__).error("the start failed", exc_info=error)
    return f"{_sentence(repr(error))} This is a bug in Parley: please report it with the log above."


def _another_address(reason: str, error: OSError, config: BrokerConfig) -> str:
    """Return a setting that would fix the listener named in ``reason``: with another port, or with this machine's
    loopback address. It keeps the protocol and the other listeners."""
    keeps_host = not isinstance(error, socket.gaierror) and error.errno in (errno.EADDRINUSE, errno.EACCES)
    if "metrics.listener" in reason:
        host, port = _corrected(*(config.metrics_address or ("", 0)), keeps_host=keeps_host)
        host = f"[{host}]" if ":" in host else host
        return f"metrics.listener={'https://' if config.metrics_is_tls else ''}{host}:{port}"
    key, addresses = "listeners", config.bound
    if any(_is_named(each, reason) for each in config.bootstrap):
        key, addresses = "bootstrap.listeners", config.bootstrap
    listeners = []
    for each in addresses:
        host, port = _corrected(each.host, each.port, keeps_host=keeps_host)
        listeners.append(str(each.at(host=host, port=port) if _is_named(each, reason) else each))
    return f"{key}={','.join(listeners)}"


def _is_named(address: ListenerAddress, reason: str) -> bool:
    """Return True if the reason, an operating system's error that contains an address, is about this address."""
    return f" {address.host}:{address.port}:" in reason or (not address.host and f":{address.port}:" in reason)


def _another_folder(config: BrokerConfig) -> str:
    """Return a ``log.dirs`` setting with other folders if a running broker uses one of this broker's, otherwise an
    empty string."""
    from parley.storage.log_directory import is_in_use

    if not any(is_in_use(Path(each)) for each in config.data_dirs):
        return ""
    return "log.dirs=" + ",".join(f"{Path(each)}-2" for each in config.data_dirs)


def _corrected(host: str, port: int, *, keeps_host: bool) -> tuple[str, int]:
    """Return the same host with another port if ``keeps_host``, otherwise the loopback address with the same port."""
    if not keeps_host:
        return "127.0.0.1", port
    return host, port + 10_000 if port + 10_000 < 1 << 16 else port - 10_000


def _of_the_store(error: CoordinationError, config: BrokerConfig) -> str:
    """Return what is wrong with the store, naming the configuration key that the operator has set, and what to do.

    If the store is down, the text does not suggest another address: with another store, the broker would form a new
    cluster.
    """
    from parley.consensus.errors import DamagedStore, Retriable, UsedByOlderVersion, WrongStore

    keys = ("coordination.url", "zookeeper.connect")
    key, address = next(((key, value) for key in keys if (value := config.given.get(key, "").strip())), ("", ""))
    store = f"{key}={address}" if key else f"The embedded store in {config.data_dirs[0]}"
    if isinstance(error, DamagedStore):
        return f"{store} cannot be read: {_sentence(error)}"
    if isinstance(error, WrongStore):
        return f"{store} is not the store of this broker's data: {_sentence(error)}"
    if isinstance(error, UsedByOlderVersion):
        return f"{store} cannot be used yet: {_sentence(error)}"
    if isinstance(error, Retriable):
        return (
            f"{store} does not respond: {_sentence(error)} The store is down or cannot be reached from this machine: "
            "start it again or repair the network, then start the broker. Do not change the address of a store that is "
            "only down."
        )
    if key:
        return f"{store} cannot be used: {_sentence(error)} Correct {key} (docs/coordination.md lists the stores)."
    return f"{store} cannot be used: {_sentence(error)} Correct log.dirs or the permissions of the folder."


def _sentence(error: object) -> str:
    text = str(error).strip()
    text = text[:1].upper() + text[1:] if text.startswith("cannot ") else text
    return text if text.endswith((".", "!", "?")) else f"{text}."
