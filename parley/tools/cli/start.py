"""``parley start``: run a broker in this process until SIGTERM or SIGINT.

Rules:

1. Without a properties file it runs a single local broker: ``parley.broker.config.presets.COMMAND``, changed by
   ``--override``. With a file, only the file and the overrides apply, as with kafka-server-start. In a container,
   variables are settings, too (``parley.tools.cli.environment``).
2. Once the broker serves clients, a summary is printed to standard output. Exactly one of its lines ends with
   ``bootstrap.servers=host:port``. The broker's log goes to standard error.
3. SIGTERM and SIGINT stop the broker cleanly with exit code 0. A second SIGINT kills it; the next start then recovers.
   Exit code 74 means that no log directory is usable (deploy/parley.service), 75 that the process ran out of file
   descriptors or memory, 1 any other failure.
4. It starts fast: it imports only what a broker needs, so it parses its options with the standard library.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from parley.tools.cli.invocation import FAILED, INTERRUPTED, STARVED, CommandError, pairs
from parley.tools.cli.start_failures import exit_code_of, why_it_ended, why_not_started

if TYPE_CHECKING:
    from parley.broker.config import BrokerConfig
    from parley.broker.server import BrokerServer

DIRECTORY_FILE: Final = (
    "meta.properties"  # as in parley.storage.meta_properties; not imported, so that the command starts fast
)
_METRICS: Final = "metrics.listener"
_ALL_ADDRESSES: Final = ("", "0.0.0.0", "::")
"""The hosts of a listener on all addresses of a machine."""

FILES_MIN: Final = 64
"""The lowest limit on open files with which a broker starts. It opens about 30 files before it hosts a partition."""
COLLECT_AFTER: Final = 20_000
"""The number of new objects after which Python's garbage collector runs. A broker creates few objects that need it, and
keeps many alive: with Python's default (700), collection takes a third of the time to read back committed offsets."""
OLDER_AFTER: Final = 2
"""The number of collections of new objects after which older objects are examined, too: up to 60,000 objects, in 10 ms.
With Python's default (10) these collections take 35 ms."""

_NO_ORDERLY_END: Final = (
    "Error: the process has run out of file descriptors or memory, and the broker could not shut down cleanly.\n"
)

_EXAMPLES: Final = """\
Examples:

  parley start
      one broker on 127.0.0.1:9092, its data in ./parley-data
  parley start --override listeners=PLAINTEXT://127.0.0.1:19092 --override log.dirs=/tmp/other
      a second broker on the same machine
  parley start server.properties --override log.retention.hours=24
      the configuration of the file, with one setting changed
  parley start --brokers 3
      a cluster on this machine: ports 9092, 9093 and 9094, one process per broker
"""


def main(words: Sequence[str]) -> int:
    """Run the command with these arguments. Returns its exit code. Prints a line for each error in the options or the
    configuration."""
    try:
        options = parser().parse_args(words)
    except SystemExit as end:
        return FAILED if end.code else 0
    try:
        if options.from_environment:
            return run(_configured_by_environment(options))
        if options.brokers != 1:
            return _run_cluster(options)
        if options.bootstrap_port is not None:
            raise CommandError(
                "--bootstrap-port needs --brokers. For a broker that is started alone, set bootstrap.listeners."
            )
        if options.restart:
            raise CommandError(
                "--restart needs --brokers. To restart a single broker, use a service manager such as systemd."
            )
        config = configuration(options.properties, with_port(options.override, options.port))
        _refuse_folders_of_a_cluster(config.data_dirs)
    except CommandError as error:
        for line in str(error).splitlines():
            print(f"Error: {line}", file=sys.stderr)
        return FAILED
    return run(config)


def _configured_by_environment(options: argparse.Namespace) -> BrokerConfig:
    """Return the configuration of a broker in a container. Prints the variables that have no effect. Raises
    ``CommandError`` for options, variables or settings that are invalid."""
    from parley.configuration.properties import read_properties
    from parley.configuration.providers import ConfigProviders
    from parley.tools.cli import environment

    if options.brokers != 1 or options.restart or (options.port, options.bootstrap_port) != (None, None):
        raise CommandError(
            "--from-environment starts a single broker: leave out --brokers, --restart, --port and --bootstrap-port."
        )
    path: Path | None = options.properties
    if path is None and Path(environment.MOUNTED).exists():
        path = Path(environment.MOUNTED)
    with _explained(path):
        in_file = None if path is None else read_properties(path)
        given = environment.merged(os.environ, in_file, pairs(options.override, "--override"), socket.gethostname())
        given = ConfigProviders(given).resolve(given)
    config = _checked(given)
    environment.refuse_unknown(os.environ, config)
    for sentence in environment.without_effect(os.environ):
        print(sentence, file=sys.stderr)
    return config


def with_port(overrides: Sequence[str], port: int | None) -> Sequence[str]:
    """Return the overrides, preceded by the one that ``--port`` implies if it is given."""
    return overrides if port is None else [f"listeners=PLAINTEXT://127.0.0.1:{port}", *overrides]


def _run_cluster(options: argparse.Namespace) -> int:
    """Run several brokers until they stop. Returns the exit code. Raises ``CommandError`` if a configuration, a folder
    or a port cannot be used."""
    gc.enable()
    from parley.tools.cli import start_cluster

    given = start_cluster.Given(
        _given(options.properties, options.override), pairs(options.override, "--override"), options.properties
    )
    plans = start_cluster.plans(given, options.brokers, port=options.port, bootstrap_port=options.bootstrap_port)
    for plan in plans:
        _refuse_folders_of_one(_checked(plan.settings).data_dirs)
    start_cluster.refuse_ports_in_use(plans)
    return start_cluster.run(plans, restart=options.restart)


def _refuse_folders_of_a_cluster(folders: Sequence[str]) -> None:
    """Raise ``CommandError`` if a folder contains the data of a cluster, so that a single broker does not use it by
    mistake."""
    for folder in folders:
        if any(Path(folder).glob(f"broker-*/{DIRECTORY_FILE}")):
            raise CommandError(
                f"{folder} contains the data of a cluster. Start the cluster with `parley start --brokers N`, or give "
                "this broker a separate folder (--override log.dirs=...)."
            )


def _refuse_folders_of_one(folders: Sequence[str]) -> None:
    """Raise ``CommandError`` if a folder contains the data of a single broker, because the cluster would not know its
    topics."""
    for folder in folders:
        parent = Path(folder).parent
        if (parent / DIRECTORY_FILE).exists():
            raise CommandError(
                f"{parent} contains the data of a single broker. Start the broker with `parley start`, or give the "
                "cluster a separate folder (--override log.dirs=...)."
            )


def parser() -> argparse.ArgumentParser:
    """Return the option parser of the command."""
    made = argparse.ArgumentParser(
        prog="parley start",
        description="Start a broker. Without a properties file: a single broker on 127.0.0.1:9092 with an embedded "
        "coordination store, data in ./parley-data. Ctrl-C stops it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("properties", nargs="?", type=Path, help="configuration file, like Kafka's server.properties")
    made.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting that overrides the file; repeatable (docs/configuration.md lists all settings)",
    )
    made.add_argument(
        "--brokers",
        type=int,
        default=1,
        metavar="N",
        help="number of brokers to start, each in its own process, with the ids 1 to N; overrides apply to all",
    )
    made.add_argument(
        "--port", type=int, metavar="PORT", help="port of the first broker; the others use the next ports"
    )
    made.add_argument(
        "--bootstrap-port",
        type=int,
        metavar="PORT",
        help="with --brokers: a port that all brokers share, so that clients need a single address, which works as "
        "long as any broker runs",
    )
    made.add_argument(
        "--from-environment",
        action="store_true",
        help="for containers: variables such as KAFKA_LOG_RETENTION_MS are settings, which override the file "
        "(/etc/parley/broker.properties, if there is one; docs/deployment.md)",
    )
    made.add_argument("--restart", action="store_true", help="with --brokers: restart a broker that exits unexpectedly")
    return made


def configuration(properties: Path | None, overrides: Sequence[str]) -> BrokerConfig:
    """Read and check the configuration. Raises ``CommandError`` with a line for every problem."""
    given = _given(properties, overrides)
    return _checked(given if properties is not None else {**_preset(given), **given})


def _given(properties: Path | None, overrides: Sequence[str]) -> dict[str, str]:
    """Return the settings of the file with the overrides applied, and with values from config providers. Raises
    ``CommandError`` if the file cannot be read or a value cannot be supplied."""
    from parley.configuration.providers import ConfigProviders, read_configuration

    given = dict(pairs(overrides, "--override"))
    with _explained(properties):
        in_file = {} if properties is None else read_configuration(properties)
        return {**in_file, **ConfigProviders({**in_file, **given}).resolve(given)}


@contextmanager
def _explained(properties: Path | None) -> Iterator[None]:
    """Turn the errors of reading a file and calling its config providers into ``CommandError``."""
    from parley.configuration.providers import UnresolvedValue

    try:
        yield
    except UnresolvedValue as error:
        raise CommandError(f"{error}.") from error
    except OSError as error:
        raise CommandError(f"The file {properties} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise CommandError(f"The file {properties} is not a properties file: {error}.") from error


def _checked(settings: Mapping[str, str]) -> BrokerConfig:
    from parley.broker.config import BrokerConfig, ConfigError

    try:
        return BrokerConfig.from_properties(settings)
    except ConfigError as error:
        raise CommandError(str(error)) from error


def _preset(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a broker without a file. If the metrics port is taken, any free port is used."""
    from parley.broker.config.presets import COMMAND
    from parley.tools.cli.ports import free_or_any

    return {
        **COMMAND,
        "log.dirs": str(Path(COMMAND["log.dirs"]).absolute()),
        _METRICS: given[_METRICS] if _METRICS in given else free_or_any(COMMAND[_METRICS]),
    }


def run(config: BrokerConfig) -> int:
    """Run a broker until a signal stops it or it fails. Returns the exit code.

    The caller disables the garbage collector before it imports anything, which makes a start faster; this function
    enables it."""
    limit = _raise_file_limit()
    if limit < FILES_MIN:
        print(
            f"Error: the limit of open files is {limit}, and a broker needs at least {FILES_MIN}. Raise it "
            "(ulimit -n, LimitNOFILE; docs/operations.md says to how many).",
            file=sys.stderr,
        )
        return STARVED
    import uvloop

    from parley.broker.logging.lines import start_logging
    from parley.broker.runtime.exhaustion_watch import LastResort
    from parley.broker.server import BrokerServer

    gc.freeze()  # modules live as long as the process, so no collection needs to examine them
    gc.set_threshold(COLLECT_AFTER, OLDER_AFTER)
    gc.enable()
    writer = start_logging(config)
    sys.unraisablehook = _on_unraisable
    _hold_reserves()
    server = BrokerServer(config, owns_process=True)
    patience_s = 2 * config.session_timeout_ms / 1000
    last_resort = LastResort(
        lambda: server.exhaustion_checks, lambda: _end_at_once(_NO_ORDERLY_END), patience_s=patience_s
    )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(server, config))
            if server.starved:  # closing the loop starts a thread, which would hang forever without memory
                writer.close()
                _end_at_once(f"Error: {why_it_ended(server)[0]}\n")
        reason, code = why_it_ended(server)
    except NotStarted as error:
        reason, code = str(error), error.exit_code
    except Exception:
        if not server.starved:
            raise
        reason, code = why_it_ended(server)  # the shortage also prevented an orderly shutdown
    finally:
        last_resort.close()
        writer.close()
    # Printed after the log's last line, which another thread writes to the same terminal.
    if reason is not None:
        print(f"Error: {reason}", file=sys.stderr)
    return code


class NotStarted(Exception):
    """Raised if startup fails. The message says at which step, why, and what to do."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def _raise_file_limit() -> float:
    """Raise the limit on file descriptors to the maximum, because connections and active logs need them. Returns the
    limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return math.inf if soft == resource.RLIM_INFINITY else soft


def _hold_reserves() -> None:
    """Hold file descriptors and memory in reserve, to be released if the process runs short of them."""
    from parley.broker.runtime.exhaustion_watch import MEMORY_RESERVED_BYTES, Allowance
    from parley.storage.resource_exhaustion import DESCRIPTORS, MEMORY

    for reserve, amount in ((DESCRIPTORS, Allowance.of_process().reserved), (MEMORY, MEMORY_RESERVED_BYTES)):
        reserve.hold(amount)
        reserve.refill()


def _on_unraisable(raised: sys.UnraisableHookArgs) -> None:
    """Report a shortage whose error reaches no caller. For example, a thread that starts another thread waits forever
    if that thread fails immediately.

    ``LastResort`` ends such a process.
    """
    # Without memory, an import statement may fail.
    noted = sys.modules["parley.storage.resource_exhaustion"].note_lost_work
    if raised.exc_value is None or not noted(raised.exc_value):
        sys.__unraisablehook__(raised)


def _end_at_once(reason: str) -> NoReturn:
    """End the process immediately, without Python's usual shutdown, which a shortage may prevent from ever
    completing."""
    os.write(2, reason.encode())
    os._exit(STARVED)


async def _serve(server: BrokerServer, config: BrokerConfig) -> None:
    from parley.broker.config import ConfigError
    from parley.broker.logging.unexpected_errors import log_loop_error

    asyncio.get_running_loop().set_exception_handler(log_loop_error)
    stopping = asyncio.Event()
    _on_signals(stopping.set)
    starting = asyncio.ensure_future(server.start())
    told = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({starting, told}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        return
    try:
        starting.result()
    except Exception as error:
        told.cancel()
        # The error about a setting names the setting. The step would say nothing to a user.
        step = "" if isinstance(error, ConfigError) else f": it was {server.failed_step}"
        raise NotStarted(
            f"The broker did not start{step}. {why_not_started(error, config)}",
            exit_code_of(error),
        ) from error
    # A single write, because another thread writes the log to the same terminal.
    sys.stdout.write(summary(server, config) + "\n")
    sys.stdout.flush()
    failed = asyncio.ensure_future(server.failed.wait())
    await asyncio.wait({told, failed}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    failed.cancel()
    from parley.storage.resource_exhaustion import MEMORY

    await (server.stop() if MEMORY.lost_work is None else server.give_up())


def _on_signals(stop: Callable[[], object]) -> None:
    """Stop cleanly at the first signal, and exit immediately at the second SIGINT."""
    interrupts = 0

    def interrupted() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            print("\nKilled; the next start recovers the logs.", file=sys.stderr, flush=True)
            os._exit(INTERRUPTED)
        print("\nStopping. Press Ctrl-C again to kill the broker.", file=sys.stderr, flush=True)
        stop()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupted)
    loop.add_signal_handler(signal.SIGTERM, stop)


def summary(server: Any, config: BrokerConfig) -> str:
    """Return the summary for the person who started the broker: data folder, metrics, address."""
    data = ", ".join(str(Path(name).absolute()) for name in config.data_dirs)
    lines = [
        f"Broker {server.identity.broker_id} of cluster {server.identity.cluster_id} is ready.",
        f"  data     {data} (it stays when the broker stops)",
    ]
    exporter = server.serving.exporter
    if exporter is not None:
        scheme = "https" if config.metrics_is_tls else "http"
        lines.append(f"  metrics  {scheme}://{_host(config)}:{exporter.port}/metrics")
    lines += [f"  {label:<7}  {text}" for label, text in notes_on_listeners(config, server.bootstrap_servers)]
    lines += ["  stop     Ctrl-C, or SIGTERM", f"  clients  bootstrap.servers={server.bootstrap_servers}"]
    return "\n".join(lines)


def notes_on_listeners(config: BrokerConfig, bootstrap_servers: str) -> list[tuple[str, str]]:
    """Return notes for the operator about the listeners, as labels and texts. They mention listeners on all addresses,
    and listeners at which clients on other machines may do everything."""
    notes = []
    addresses = [*config.bound, *config.bootstrap]
    everywhere = ", ".join(str(each) for each in addresses if each.host in _ALL_ADDRESSES)
    if everywhere:
        told = f"clients connect to {bootstrap_servers} (advertised.listeners)"
        notes.append(("listens", f"{everywhere}, on all addresses of this machine; {told}"))
    is_open = ", ".join(str(each) for each in addresses if each.protocol == "PLAINTEXT" and not _is_local(each.host))
    if is_open and not config.authorizer_class_name:
        notes.append(("warning", f"clients on other machines may do everything at {is_open} (docs/security.md)"))
    return notes


def _is_local(host: str) -> bool:
    """Return True if a listener at this host can be reached only from this machine."""
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host(config: BrokerConfig) -> str:
    address = config.metrics_address
    return address[0] if address else ""
