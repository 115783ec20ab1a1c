"""Take the snapshot of a broker's properties file and of this machine, without changing anything.

The snapshot contains only what this user may see. For example, without root's permissions the processes of other users
are not named.
"""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from parley.broker.config import BrokerConfig, ConfigError
from parley.broker.config.broker_config import warning_about
from parley.broker.config.broker_keys import BrokerKeys, base_key
from parley.broker.config.key_definition import closest
from parley.broker.config.listeners import ListenerAddress
from parley.broker.config.retired import why_retired
from parley.broker.config.store_keys import third_party_keys
from parley.broker.security.tls.server import server_tls
from parley.configuration.providers import is_about_providers, read_configuration
from parley.tools.cli import start
from parley.tools.cli.invocation import CommandError
from parley.tools.doctor.facts import Advertised, Certificate, Folder, Listener, Machine, Missing, Part, Process
from parley.tools.doctor.gathering_folders import folder_at
from parley.tools.doctor.gathering_processes import listening_on, words_of
from parley.tools.doctor.gathering_segments import damage_in
from parley.tools.doctor.gathering_store import STORE_S, store_of
from parley.tools.doctor.steps import LIMIT_S, Steps, in_background

T = TypeVar("T")

DISK_S: Final = 60.0


async def machine_of(
    path: Path, progress: Callable[[str], None] = lambda text: None, limit_s: float = LIMIT_S
) -> Machine:
    """Take the snapshot, within about ``limit_s`` seconds. If the settings are invalid, the snapshot contains only
    their problems. Raises ``CommandError`` if the file cannot be read."""
    try:
        given = read_configuration(path)
    except OSError as error:
        raise CommandError(f"The file {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise CommandError(f"The file {path} is not a properties file: {error}.") from error
    unknown, ignored = _warnings(given)
    config, problems = _config(given)
    if config is None:
        reason = "the settings have errors: correct them first, and examine again"
        missing = [Missing(part, reason) for part in (Part.MACHINE, Part.STORE)]
        return Machine(datetime.now(UTC), str(path), problems, unknown, ignored, missing=missing)
    found = Machine(datetime.now(UTC), str(path), (), unknown, ignored)
    return await _with_machine(found, config, Steps(limit_s), progress)


def _config(given: Mapping[str, str]) -> tuple[BrokerConfig | None, list[tuple[str, str]]]:
    try:
        return BrokerConfig.from_properties(given), []
    except ConfigError as error:
        return None, [(each.key, str(each)) for each in error.problems]


def _warnings(given: Mapping[str, str]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the unknown settings, each with the key that was probably meant (or an empty string), and the settings
    without effect, each with the reason."""
    try:
        keys = {**BrokerKeys.KEYS, **third_party_keys([name for name in given if base_key(name) is None])}
    except ConfigError:
        keys = dict(BrokerKeys.KEYS)
    unknown, ignored = [], []
    for name in given:
        text = "" if is_about_providers(name) else warning_about(name, keys)
        if text and base_key(name) is None and name not in keys and not why_retired(name):
            unknown.append((name, closest(name, keys) or ""))
        elif text:
            ignored.append((name, text))
    return unknown, ignored


async def _with_machine(found: Machine, config: BrokerConfig, steps: Steps, progress: Callable[[str], None]) -> Machine:
    async def looked(what: str, work: Callable[[], T]) -> T | None:
        progress(what)
        return await steps.step(Part.MACHINE, what, in_background(work), DISK_S)

    in_file = config
    started = await looked("the running broker", lambda: _as_started(Path(found.path), in_file))
    config = started or in_file
    given = config.given
    folders = await looked("log directories", lambda: [folder_at(Path(each)) for each in config.data_dirs]) or []
    holders = {each.holder for each in folders if each.holder is not None}
    listeners = await looked("listeners", lambda: list(_listeners(config))) or []
    running = next((each.holder for each in listeners if each.holder in holders), None)
    checked = await looked("segments", lambda: damage_in(folders, is_running=bool(holders)))
    damage, partitions = checked or ([], 0)
    progress("the coordination store")
    has_store = running is not None or any(each.cluster_id for each in folders) or bool(given.get("coordination.url"))
    if has_store:
        store = await steps.step(Part.STORE, "coordination.url", store_of(given, STORE_S), 2 * STORE_S)
    else:
        store = None
        steps.note(Part.STORE, "no broker has used the embedded store yet", has_failed=False)
    return Machine(
        found.now,
        found.path,
        unknown=found.unknown,
        ignored=found.ignored,
        broker_id=_broker_id(config, folders),
        listeners=listeners,
        advertised=await looked("advertised names", lambda: list(_advertised(config))) or [],
        folders=folders,
        damage=damage,
        certificates=await looked("certificates", lambda: list(_certificates(config))) or [],
        running=running,
        descriptors=_descriptors(running),
        partitions=partitions,
        store=store,
        missing=steps.missing,
    )


def _broker_id(config: BrokerConfig, folders: list[Folder]) -> int | None:
    if config.broker_id >= 0:
        return int(config.broker_id)
    return next((each.broker_id for each in folders if each.broker_id is not None), None)


# --- The running broker ---


def _as_started(path: Path, config: BrokerConfig) -> BrokerConfig | None:
    """Return the configuration of the process that runs this file's broker, or None if no such process is found.

    The process listens on a port that the file names, and its command line names the file. The overrides of that
    command line apply, and relative log directories are below its working directory. With ``--brokers`` it is the first
    broker.
    """
    for each in config.bound:
        holder = listening_on(each.port) if each.port else None
        command = None if holder is None else words_of(holder)
        started = None if command is None else _configuration_in(*command, path)
        if started is not None:
            return started
    return None


def _configuration_in(words: Sequence[str], folder: Path, path: Path) -> BrokerConfig | None:
    """Return the configuration of a process, if its words are a ``parley start`` with this file in the working
    directory ``folder``, otherwise None."""
    if "start" not in words or not any(_is_same(folder / word, path) for word in words):
        return None
    with suppress(SystemExit, CommandError, ConfigError):
        options = start.parser().parse_args(words[words.index("start") + 1 :])
        if options.properties is not None and _is_same(folder / options.properties, path):
            settings = start.configuration(path, start.with_port(options.override, options.port))
            data = ",".join(str(folder / each) for each in settings.data_dirs)
            return BrokerConfig.from_properties({**settings.given, "log.dirs": data})
    return None


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


# --- Addresses ---


def _listeners(config: BrokerConfig) -> Iterator[Listener]:
    for each in config.bound:
        yield _tried("listeners", each.name, each.host, each.port)
    if config.metrics_address is not None:
        yield _tried("metrics.listener", "METRICS", *config.metrics_address)


def _tried(key: str, name: str, host: str, port: int) -> Listener:
    """Try to bind a listener's address. Returns the listener with the error, if any."""
    if port == 0:
        return Listener(key, name, host, port)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        holder = listening_on(port) if is_taken else None
        return Listener(key, name, host, port, error.strerror or str(error), is_taken, holder)
    return Listener(key, name, host, port)


def _advertised(config: BrokerConfig) -> Iterator[Advertised]:
    for each in config.advertised:
        host = each.host or socket.gethostname()
        try:
            found = socket.getaddrinfo(host, each.port or None, type=socket.SOCK_STREAM)
        except OSError as error:
            yield Advertised(each.name, host, each.port, error=error.strerror or str(error))
        else:
            yield Advertised(each.name, host, each.port, sorted({str(one[4][0]) for one in found}))


# --- Certificates and limits ---


def _certificates(config: BrokerConfig) -> Iterator[Certificate]:
    listeners = [*config.bound]
    if config.metrics_is_tls and config.metrics_address is not None:
        listeners.append(ListenerAddress("METRICS", "SSL", *config.metrics_address))
    for each in listeners:
        if not each.is_tls:
            continue
        try:
            expires = server_tls(each, config).expires_at
        except (ConfigError, OSError) as error:
            yield Certificate(f"listener {each.name}", error=str(error).replace("\n", "; "))
        else:
            yield Certificate(f"listener {each.name}", datetime.fromtimestamp(expires, UTC))


def _descriptors(running: Process | None) -> int | None:
    """Return the limit on open files: that of the broker if it runs, otherwise the limit that it would have if it were
    started from here. Returns None if the limit is unknown.

    A broker raises its soft limit to the hard limit.
    """
    if running is not None:
        with suppress(OSError, ValueError, IndexError):
            lines = Path(f"/proc/{running.pid}/limits").read_text().splitlines()
            return int(next(line for line in lines if line.startswith("Max open files")).split()[-3])
        return None
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard
