"""``parley start``: run a broker in this process until it is told to stop.

Rules:

1. Without a properties file it is one broker for one machine: ``parley.broker.config.presets.COMMAND``, which
   ``--override`` can change. With one, the file and the overrides say everything, as with kafka-server-start.
2. Standard output has the summary for people, once clients are served: exactly one line ends with
   ``bootstrap.servers=host:port``. The broker's own log goes to standard error.
3. SIGTERM and SIGINT stop it in order, exit code 0. A second SIGINT ends it at once; the next start then recovers.
   Exit code 74 means that no log directory can be used (deploy/parley.service), 1 any other failure.
4. It starts fast: nothing is imported that a broker does not need, so options are parsed with the standard library.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from parley.tools.cli.invocation import DISK_FAILED, FAILED, INTERRUPTED, CommandError, pairs

if TYPE_CHECKING:
    from parley.broker.config import BrokerConfig
    from parley.broker.server import BrokerServer
    from parley.consensus.errors import CoordinationError

DIRECTORY_FILE: Final = (
    "meta.properties"  # parley.storage.meta_properties has it, which a command that starts fast does not import
)
_OF_ADDRESSES: Final = {
    errno.EADDRINUSE: "Is another broker running? Stop it, or give this one another address",
    errno.EADDRNOTAVAIL: "This machine has no such address: listen on one that it has (advertised.listeners is for "
    "others)",
    errno.EACCES: "Ports below 1024 need rights that this user has not: take a higher one",
}
"""What to do about an address that cannot be listened on."""
_UNKNOWN_NAME: Final = "Listen on an address of this machine (advertised.listeners has the names for clients)"

_EXAMPLES: Final = """\
Examples:

  parley start
      one broker on 127.0.0.1:9092, its data in ./parley-data
  parley start --override listeners=PLAINTEXT://127.0.0.1:19092 --override log.dirs=/tmp/other
      another one beside it
  parley start server.properties --override log.retention.hours=24
      a broker as the file says, but for one setting
  parley start --brokers 3
      a cluster on this machine: ports 9092, 9093 and 9094, a process each
"""


def main(words: Sequence[str]) -> int:
    """Run the command; its exit code."""
    try:
        options = _parser().parse_args(words)
    except SystemExit as end:
        return FAILED if end.code else 0
    try:
        if options.brokers != 1:
            return _run_cluster(options)
        if options.restart:
            raise CommandError("--restart goes with --brokers: a broker alone is restarted by whatever runs it.")
        config = configuration(options.properties, _with_port(options.override, options.port))
        _refuse_folders_of_a_cluster(config.data_dirs)
    except CommandError as error:
        for line in str(error).splitlines():
            print(f"Error: {line}", file=sys.stderr)
        return FAILED
    return run(config)


def _with_port(overrides: Sequence[str], port: int | None) -> Sequence[str]:
    return overrides if port is None else [f"listeners=PLAINTEXT://127.0.0.1:{port}", *overrides]


def _run_cluster(options: argparse.Namespace) -> int:
    """Run several brokers, once every one of their configurations is found to be right."""
    from parley.tools.cli import start_cluster

    plans = start_cluster.plans(
        _given(options.properties, options.override),
        options.brokers,
        port=options.port,
        has_file=options.properties is not None,
    )
    for plan in plans:
        _refuse_folders_of_one(_checked(plan.settings).data_dirs)
    return start_cluster.run(plans, restart=options.restart)


def _refuse_folders_of_a_cluster(folders: Sequence[str]) -> None:
    """One broker must not take what lies there for its own, nor join the cluster in the store beside it by mistake."""
    for folder in folders:
        if any(Path(folder).glob(f"broker-*/{DIRECTORY_FILE}")):
            raise CommandError(
                f"{folder} has the data of a cluster: start that with `parley start --brokers N`, or give this broker "
                "a folder of its own (--override log.dirs=...)."
            )


def _refuse_folders_of_one(folders: Sequence[str]) -> None:
    """A cluster knows nothing of the data of a broker that ran alone: its topics would have no leader."""
    for folder in folders:
        parent = Path(folder).parent
        if (parent / DIRECTORY_FILE).exists():
            raise CommandError(
                f"{parent} has the data of one broker: start that with `parley start`, or give the cluster a folder "
                "of its own (--override log.dirs=...)."
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="parley start",
        description="Start a broker. Without a properties file it is one broker on 127.0.0.1:9092 with an embedded "
        "store and its data in ./parley-data. Ctrl-C stops it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("properties", nargs="?", type=Path, help="configuration, as Kafka's server.properties")
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting that counts more than the file; repeatable (docs/configuration.md has all settings)",
    )
    parser.add_argument(
        "--brokers",
        type=int,
        default=1,
        metavar="N",
        help="how many brokers to start, each in a process of its own, with the ids 1 to N; overrides apply to all",
    )
    parser.add_argument("--port", type=int, metavar="PORT", help="where the first broker listens, the others above it")
    parser.add_argument(
        "--restart", action="store_true", help="with --brokers: start a broker again that ends by itself"
    )
    return parser


def configuration(properties: Path | None, overrides: Sequence[str]) -> BrokerConfig:
    """The configuration asked for. Raises ``CommandError`` with every problem on a line of its own."""
    given = _given(properties, overrides)
    return _checked(given if properties is not None else {**_preset(), **given})


def _given(properties: Path | None, overrides: Sequence[str]) -> dict[str, str]:
    """The settings of the file and over them the overrides."""
    from parley.broker.config import read_properties

    given = dict(pairs(overrides, "--override"))
    if properties is None:
        return given
    try:
        return {**read_properties(properties), **given}
    except OSError as error:
        raise CommandError(f"The file {properties} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise CommandError(f"The file {properties} is no properties file: {error}.") from error


def _checked(settings: Mapping[str, str]) -> BrokerConfig:
    from parley.broker.config import BrokerConfig, ConfigError

    try:
        return BrokerConfig.from_properties(settings)
    except ConfigError as error:
        raise CommandError(str(error)) from error


def _preset() -> dict[str, str]:
    """What a broker without a file is started with. Metrics are no reason not to start: any free port will do."""
    from parley.broker.config.presets import COMMAND

    host, _, port = COMMAND["metrics.listener"].rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            port = "0"
    return {**COMMAND, "log.dirs": str(Path(COMMAND["log.dirs"]).absolute()), "metrics.listener": f"{host}:{port}"}


def run(config: BrokerConfig) -> int:
    """Run a broker until it is told to stop, or fails; the exit code."""
    import uvloop

    from parley.broker.logging.lines import start_logging
    from parley.broker.server import BrokerServer

    writer = start_logging(config)
    _raise_file_limit()
    server = BrokerServer(config)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(server, config))
        reason, code = why_it_ended(server)
    except NotStarted as error:
        reason, code = str(error), error.exit_code
    finally:
        writer.close()
    # After the log's last line, which goes to the same terminal from another thread.
    if reason is not None:
        print(f"Error: {reason}", file=sys.stderr)
    return code


def why_it_ended(server: BrokerServer) -> tuple[str | None, int]:
    """Why a broker that had started ended, or None if it was told to; and the exit code."""
    from parley.broker.startup.registration import COORDINATION

    if not server.failed.is_set():
        return None, 0
    if server.parts.logs.online():
        problem = server.health.problem(COORDINATION)
        return _sentence(f"the broker is {problem}" if problem else "the broker failed; the log above says why"), FAILED
    return "every log directory has failed; the log above says why.", DISK_FAILED


class NotStarted(Exception):
    """The start has failed. The text says at which step, why, and what to do."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def _raise_file_limit() -> None:
    """Take as many file descriptors as the system grants: connections and active logs need them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(server: BrokerServer, config: BrokerConfig) -> None:
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
        from parley.storage.log_manager import NoLogDirectory

        raise NotStarted(
            f"The broker did not start: it was {server.failed_step}. {why_not_started(error, config)}",
            DISK_FAILED if isinstance(error, NoLogDirectory) else FAILED,
        ) from error
    # In one write: the log goes to the same terminal from another thread.
    sys.stdout.write(summary(server, config) + "\n")
    sys.stdout.flush()
    failed = asyncio.ensure_future(server.failed.wait())
    await asyncio.wait({told, failed}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    failed.cancel()
    await server.stop()


def _on_signals(stop: Callable[[], object]) -> None:
    """Stop at the first signal, end at once at the second SIGINT."""
    interrupts = 0

    def interrupted() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            print("\nEnded at once; the next start recovers what was not closed.", file=sys.stderr, flush=True)
            os._exit(INTERRUPTED)
        print("\nStopping. Ctrl-C again ends it at once.", file=sys.stderr, flush=True)
        stop()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupted)
    loop.add_signal_handler(signal.SIGTERM, stop)


def summary(server: Any, config: BrokerConfig) -> str:
    """What a person who started the broker wants to know."""
    data = ", ".join(str(Path(name).absolute()) for name in config.data_dirs)
    lines = [
        f"Broker {server.identity.broker_id} of cluster {server.identity.cluster_id} is ready.",
        f"  data     {data} (it stays when the broker stops)",
    ]
    exporter = server.serving.exporter
    if exporter is not None:
        lines.append(f"  metrics  http://{_host(config)}:{exporter.port}/metrics")
    lines += ["  stop     Ctrl-C, or SIGTERM", f"  clients  bootstrap.servers={server.bootstrap_servers}"]
    return "\n".join(lines)


def _host(config: BrokerConfig) -> str:
    address = config.metrics_address
    return address[0] if address else ""


def why_not_started(error: Exception, config: BrokerConfig) -> str:
    """What went wrong and what to do about it, in a line without secrets; an error nobody foresaw is logged."""
    from parley.broker.config import Password
    from parley.broker.logging.lines import secrets_in

    text = _reason(error, config)
    for secret in sorted(secrets_in(config), key=len, reverse=True):
        text = text.replace(secret, Password.HIDDEN)
    return text


def _reason(error: Exception, config: BrokerConfig) -> str:
    from parley.broker.config import ConfigError
    from parley.broker.membership.identity import NoBrokerId
    from parley.broker.membership.registration import DuplicateBrokerId
    from parley.consensus.errors import CoordinationError
    from parley.storage.directory_loader import TwinLogs
    from parley.storage.log_directory import DirectoryInUse
    from parley.storage.log_manager import NoLogDirectory
    from parley.storage.meta_properties import InconsistentIdentity, MalformedIdentity

    if isinstance(error, OSError) and error.filename is None:
        advice = _UNKNOWN_NAME if isinstance(error, socket.gaierror) else _OF_ADDRESSES.get(error.errno or 0)
        if advice:
            reason = str(error.strerror or error)
            key = "metrics.listener=127.0.0.1:19464" if "metrics" in reason else "listeners=PLAINTEXT://127.0.0.1:19092"
            return f"{_sentence(reason)} {advice}: --override {key}"
    if isinstance(error, OSError):
        where = error.filename or ", ".join(config.data_dirs)
        return f"{where} cannot be used: {error.strerror or error}. Correct log.dirs, or the rights of the folder."
    if isinstance(error, CoordinationError):
        return _of_the_store(error, config)
    explained = (DirectoryInUse, DuplicateBrokerId, InconsistentIdentity, MalformedIdentity)
    if isinstance(error, (*explained, NoLogDirectory, TwinLogs, NoBrokerId, ConfigError)):
        return _sentence(error)
    logging.getLogger(__name__).error("the start failed", exc_info=error)
    return f"{_sentence(repr(error))} This is a fault of Parley: please report it with the log above."


def _of_the_store(error: CoordinationError, config: BrokerConfig) -> str:
    """What is wrong with the store, named by the configuration key that the operator has set, and what to do.

    A store that is down is never a reason to change its address: a broker on another store would be another cluster.
    """
    from parley.consensus.errors import Retriable, WrongStore

    keys = ("coordination.url", "zookeeper.connect")
    key, address = next(((key, value) for key in keys if (value := config.given.get(key, "").strip())), ("", ""))
    store = f"{key}={address}" if key else f"The embedded store in {config.data_dirs[0]}"
    if isinstance(error, WrongStore):
        return f"{store} is not the store of this broker's data: {_sentence(error)}"
    if isinstance(error, Retriable):
        return (
            f"{store} does not respond: {_sentence(error)} The store is down or cannot be reached from this machine: "
            "start it again or repair the network, then start the broker. Do not change the address of a store that is "
            "only down."
        )
    if key:
        return f"{store} cannot be used: {_sentence(error)} Correct {key} (docs/coordination.md lists the stores)."
    return f"{store} cannot be used: {_sentence(error)} Correct log.dirs, or the rights of the folder."


def _sentence(error: object) -> str:
    text = str(error).strip()
    text = text[:1].upper() + text[1:] if text.startswith("cannot ") else text
    return text if text.endswith((".", "!", "?")) else f"{text}."
