"""``parley start``: run a broker in this process until it is told to stop.

Rules:

1. Without a properties file it is one broker for one machine: ``SINGLE_BROKER`` below, which ``--override`` can change.
   With one, the file and the overrides say everything, as with kafka-server-start.
2. Standard output has the summary for people, once clients are served: exactly one line ends with
   ``bootstrap.servers=host:port``. The broker's own log goes to standard error.
3. SIGTERM and SIGINT stop it in order, exit code 0. A second SIGINT ends it at once; the next start then recovers.
4. It starts fast: nothing is imported that a broker does not need, so options are parsed with the standard library.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.cli.running import FAILED, INTERRUPTED, CommandError, pairs

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.server import BrokerServer

DATA_FOLDER: Final = "parley-data"
METRICS_PORT: Final = 9464

SINGLE_BROKER: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
}
"""What one broker on one machine is started with, besides its data folder and its metrics."""

_OF_ADDRESSES: Final = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)

_EXAMPLES: Final = """\
Examples:

  parley start
      one broker on 127.0.0.1:9092, its data in ./parley-data
  parley start --override listeners=PLAINTEXT://127.0.0.1:19092 --override log.dirs=/tmp/other
      another one beside it
  parley start server.properties --override log.retention.hours=24
      a broker as the file says, but for one setting
"""


def main(words: Sequence[str]) -> int:
    """Run the command; its exit code."""
    try:
        options = _parser().parse_args(words)
    except SystemExit as end:
        return FAILED if end.code else 0
    try:
        config = configuration(options.properties, options.override)
    except CommandError as error:
        for line in str(error).splitlines():
            print(f"Error: {line}", file=sys.stderr)
        return FAILED
    return run(config)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="parley start",
        description="Start a broker. Without a properties file it is one broker on 127.0.0.1:9092 with an embedded "
        f"store and its data in ./{DATA_FOLDER}. Ctrl-C stops it.",
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
    return parser


def configuration(properties: Path | None, overrides: Sequence[str]) -> BrokerConfig:
    """The configuration asked for. Raises :class:`CommandError` with every problem on a line of its own."""
    from broker.config import BrokerConfig, ConfigError, read_properties

    given = dict(pairs(overrides, "--override"))
    if properties is not None:
        try:
            given = {**read_properties(properties), **given}
        except OSError as error:
            raise CommandError(f"The file {properties} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise CommandError(f"The file {properties} is no properties file: {error}.") from error
    else:
        given = {**SINGLE_BROKER, "log.dirs": str(Path.cwd() / DATA_FOLDER), **given}
        if "metrics.listener" not in given:
            given["metrics.listener"] = f"127.0.0.1:{_free_or_any(METRICS_PORT)}"
    try:
        return BrokerConfig.from_properties(given)
    except ConfigError as error:
        raise CommandError(str(error)) from error


def _free_or_any(port: int) -> int:
    """The port if nobody has it, else 0: metrics are no reason not to start."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port


def run(config: BrokerConfig) -> int:
    """Run a broker until it is told to stop, or fails; the exit code."""
    import uvloop

    from broker.logs import start_logging
    from broker.server import BrokerServer

    writer = start_logging(config)
    _raise_file_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(BrokerServer(config), config))
    finally:
        writer.close()


def _raise_file_limit() -> None:
    """Take as many file descriptors as the system grants: connections and active logs need them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(server: BrokerServer, config: BrokerConfig) -> int:
    stopping = asyncio.Event()
    _on_signals(stopping.set)
    starting = asyncio.ensure_future(server.start())
    told = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({starting, told}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        return 0
    try:
        starting.result()
    except Exception as error:
        told.cancel()
        reason = why_not_started(error, config)
        if reason is None:
            raise
        print(f"Error: {reason}", file=sys.stderr)
        return FAILED
    # In one write: the log goes to the same terminal from another thread.
    sys.stdout.write(summary(server, config) + "\n")
    sys.stdout.flush()
    failed = asyncio.ensure_future(server.failed.wait())
    await asyncio.wait({told, failed}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    failed.cancel()
    await server.stop()
    if server.failed.is_set():
        print("Error: every log directory has failed; the log above says why.", file=sys.stderr)
        return FAILED
    return 0


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
    exporter = getattr(server, "exporter", None)
    if exporter is not None:
        lines.append(f"  metrics  http://{_host(config)}:{exporter.port}/metrics")
    lines += ["  stop     Ctrl-C, or SIGTERM", f"  clients  bootstrap.servers={server.bootstrap_servers}"]
    return "\n".join(lines)


def _host(config: BrokerConfig) -> str:
    address = config.metrics_address
    return address[0] if address else ""


def why_not_started(error: Exception, config: BrokerConfig) -> str | None:
    """What went wrong and what to do about it, in a line; None for an error that nobody foresaw."""
    from broker.cluster_identity import NoBrokerId
    from consensus.errors import CoordinationError
    from storage.directory import DirectoryInUse
    from storage.identity import InconsistentIdentity, MalformedIdentity
    from storage.manager import NoLogDirectory, TwinLogs

    if isinstance(error, OSError) and error.errno in _OF_ADDRESSES and error.filename is None:
        return (
            f"{_sentence(error.strerror or error)} Is another broker running? Stop it, or give this one another "
            "address: --override listeners=PLAINTEXT://127.0.0.1:19092"
        )
    if isinstance(error, OSError):
        where = error.filename or ", ".join(config.data_dirs)
        return f"{where} cannot be used: {error.strerror or error}. Correct log.dirs, or the rights of the folder."
    if isinstance(error, CoordinationError):
        url = config.coordination_url or config.zookeeper_connect
        which, key = (url, "coordination.url") if url else ("the embedded store", "log.dirs")
        return f"The coordination store ({which}) cannot be used: {_sentence(error)} Is {key} right?"
    if isinstance(
        error, (DirectoryInUse, InconsistentIdentity, MalformedIdentity, NoLogDirectory, TwinLogs, NoBrokerId)
    ):
        return _sentence(error)
    return None


def _sentence(error: object) -> str:
    text = str(error).strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
