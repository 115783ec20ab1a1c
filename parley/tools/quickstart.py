"""``make quickstart``: starts three brokers, sends a real file, and kills the leader while more records are sent.

The steps are those of Kafka's quickstart: start brokers, create a topic, send and read records. Each is a command that
a user could type, and is printed before it runs. While the leader is killed, a producer in this program sends the lines
of the file again, with ``acks=all``. At the end every acknowledged line must be in the topic exactly once and in order;
otherwise the exit code is 1.

The file is given on the command line. By default it is this repository's git log, or its README without git. The store
is the embedded one; ``--store`` starts a real server of another store, and ``--coordination-url`` uses a running one.

With ``--secure`` (``SECURE=1``) brokers and store are secured. The program first shows that unauthorized clients are
refused everywhere. Then a user gets an account and permissions, and sends and reads the records.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, chdir, contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import cycle
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from confluent_kafka import Producer

from parley.configuration.properties import read_properties
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.produce.line_reader import lines_of
from parley.tools.plurals import plural
from parley.tools.store_locks import Lock
from parley.tools.store_servers import KINDS, StoreServerError, store_server

TOPIC: Final = "quickstart"
BROKERS: Final = 3
START_SECONDS_MAX: Final = 60
RATE: Final = 2000
"""The lines per second that the producer sends while the leader is killed."""
BEFORE_S, AFTER_S = 1.0, 2.0
"""The lines that must be acknowledged before the kill and after it, in seconds of sending at ``RATE``."""
PAUSE_MAX_S: Final = 60.0
_QUIET: Final = ("--override", "metrics.listener=", "--override", "logging.level=error")


def main(arguments: list[str]) -> int:
    """Run all steps. Returns 0 if every acknowledged line is in the topic exactly once and in order, otherwise 1.
    Raises SystemExit if a step cannot be done, and CalledProcessError if a command fails."""
    options = _options(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="parley-quickstart-") as folder, chdir("."):
        source = _input(options.file, Path(folder)).absolute()
        with source.open("rb") as text:
            lines = list(lines_of(text))
        if not lines:
            raise SystemExit(f"{source} has no lines: name a file with lines.")
        print(f"The input is {source}: {len(lines)} lines, {source.stat().st_size} bytes.\n")
        with ExitStack() as stack:
            if options.secure:
                access = _secured(stack, options, Path(folder))
            else:
                url = stack.enter_context(_store(options, Path(folder) / "store"))
                access = stack.enter_context(_brokers(Path(folder) / "data", url))
            sending, consumed = _story(access, source, lines)
        print(f"\nThe brokers have stopped. Their data in {folder}/data is deleted when this program ends.")
    return _report([*lines, *sending.sent], consumed, sending, time.monotonic() - began)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m parley.tools.quickstart", allow_abbrev=False)
    parser.add_argument(
        "file", nargs="?", type=Path, help="the file whose lines are sent; by default this repository's git log"
    )
    store = parser.add_mutually_exclusive_group()
    store.add_argument("--store", default="local", choices=["local", *KINDS], help="start a real server of this store")
    store.add_argument("--coordination-url", metavar="URL", help="use a running store")
    parser.add_argument("--secure", action="store_true", help="with TLS, logins, ACLs and a locked store")
    options = parser.parse_args(arguments)
    if options.secure and options.coordination_url:
        parser.error("--secure starts a new locked store: use --store")
    return options


def _input(named: Path | None, folder: Path) -> Path:
    if named is not None:
        if not named.is_file():
            raise SystemExit(f"{named} is not a file: name the file whose lines are sent.")
        return named
    log = subprocess.run(["git", "log", "--stat"], capture_output=True, check=False)
    if log.returncode == 0 and log.stdout:
        path = folder / "git-log.txt"
        path.write_bytes(log.stdout)
        return path
    return Path(__file__).parents[2] / "README.md"


def _parley(*words: str, reads: Path | None = None) -> list[str]:
    """Print a command as a user types it, and return it in a form that can be run. ``reads`` is the file to which the
    user redirects standard input."""
    print(f"\n$ parley {' '.join(words)}{'' if reads is None else f' < {reads}'}", flush=True)
    return [sys.executable, "-m", "parley", *words]


@dataclass(frozen=True)
class _Access:
    """The running brokers: their start command, their addresses, and the options with which commands and producers log
    in, if they must."""

    process: subprocess.Popen[str]
    bootstrap: str
    admin: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The producer's settings for librdkafka."""

    @property
    def as_user(self) -> tuple[str, ...]:
        """The options that commands use to send and read records."""
        return ("--bootstrap-server", self.bootstrap, *self.words)

    @property
    def as_admin(self) -> tuple[str, ...]:
        """The options that all other commands use."""
        return ("--bootstrap-server", self.bootstrap, *self.admin)


@contextmanager
def _store(options: argparse.Namespace, folder: Path, lock: Lock | None = None) -> Iterator[str | None]:
    """Yield the store's URL, or None for the embedded store in the brokers' folder. A server that was started for it is
    stopped with the context. Ends the program if the server does not start."""
    if options.coordination_url:
        address, mark, query = options.coordination_url.partition("?")
        url = f"{address.rstrip('/')}/quickstart-{secrets.token_hex(4)}{mark}{query}"
        yield url
        print(f"\nThe brokers' data in the store stays there until you delete it: {url}")
    elif options.store == "local":
        yield None
    else:
        print(f"Starting a server of {options.store}.")
        try:
            with store_server(options.store, folder, lock=lock) as url:
                yield url
        except StoreServerError as error:
            raise SystemExit(f"Error: {error}") from error


def _brokers(data: Path, url: str | None) -> AbstractContextManager[_Access]:
    settings = ["listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={data}"]
    if url is not None:
        settings.append(f"coordination.url={url}")
    words = [word for each in settings for word in ("--override", each)]
    return _running("--brokers", str(BROKERS), *words, *_QUIET)


@contextmanager
def _running(*words: str) -> Iterator[_Access]:
    """Run the brokers until the context ends, each in its own process on a free port."""
    process = subprocess.Popen(_parley("start", *words), stdout=subprocess.PIPE, text=True)
    try:
        yield _Access(process, _wait_until_ready(process))
    finally:
        process.terminate()
        if process.wait(timeout=START_SECONDS_MAX) != 0:
            print(f"The brokers ended with code {process.returncode}.", file=sys.stderr)


def _wait_until_ready(process: subprocess.Popen[str]) -> str:
    """Print the output of the brokers until it contains their addresses, and return these. Ends the program if the
    brokers do not start."""
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        _, found, bootstrap = line.strip().rpartition("bootstrap.servers=")
        if found:
            return bootstrap
    raise SystemExit(f"The brokers did not start; the command ended with code {process.wait()}.")


# --- The secured cluster ---


def _secured(stack: ExitStack, options: argparse.Namespace, folder: Path) -> _Access:
    """Run a secured cluster until the stack is closed, show which clients are refused, and grant a user access. Ends
    the program if a client is not refused.

    Returns the access of that user.
    """
    from parley.protocol.security.librdkafka import librdkafka_settings
    from parley.tools.secured_demo.files import SecuredFiles
    from parley.tools.secured_demo.first_users import create_in_own_process
    from parley.tools.secured_demo.intruders import (
        USER,
        refuse,
        refuse_forged_broker,
        show_private,
        shown,
        without_account,
        without_rights,
    )

    os.chdir(folder)
    print(f"$ cd {folder}")
    files = SecuredFiles(folder)
    lock = None if options.store == "local" else files.store_lock()
    url = stack.enter_context(_store(options, folder / "store", lock)) or f"local://{folder}/store"
    properties = files.write_broker_properties(url, brokers=BROKERS, data=folder / "data", port=0)
    try:
        create_in_own_process(files, properties)
    except CommandError as error:
        raise SystemExit(f"Error: {error}") from error
    access = stack.enter_context(_running(shown(properties), "--brokers", str(BROKERS), *_QUIET))
    access = replace(access, admin=("--command-config", shown(files.write_admin_properties())))
    _create_topic(access)
    door = access.bootstrap.partition(",")[0]

    print("\n\nIs anything open?")
    subprocess.run(_parley("security", "check", shown(properties)), check=True)

    print("\n\nUnauthorized clients are refused.")
    refuse(without_account(files, door, url))
    if lock is None:
        show_private(folder / "store")

    password = secrets.token_urlsafe(24)
    client = files.write_client_properties(f"{USER}.properties", user=USER, password=password)
    setting = shown(files.write_password_setting(USER, password))
    print(f"\n\nThe administrator creates an account for {USER}, which may do nothing yet.")
    alter = ("--alter", "--user", USER, "--add-config-file", setting)
    subprocess.run(_parley("configs", *access.as_admin, *alter), check=True)
    refuse(without_rights(door, TOPIC, client))
    refuse_forged_broker(door, TOPIC, client)

    print(f"\n\nWith these rights, {USER} is admitted.")
    for rights in (("--producer",), ("--consumer", "--group", TOPIC)):
        words = ("--add", "--allow-principal", f"User:{USER}", *rights, "--topic", TOPIC)
        subprocess.run(_parley("acls", *access.as_admin, *words), check=True, stdout=subprocess.DEVNULL)
    settings = librdkafka_settings(read_properties(client))
    return replace(access, words=("--command-config", shown(client)), group=("--group", TOPIC), settings=settings)


# --- The story ---


def _create_topic(access: _Access) -> None:
    create = ("--partitions", "1", "--replication-factor", str(BROKERS), "--config", "min.insync.replicas=2")
    subprocess.run(_parley("topics", *access.as_admin, "--create", "--topic", TOPIC, *create), check=True)


def _story(access: _Access, source: Path, lines: list[bytes]) -> tuple[_Sending, list[bytes]]:
    to, process = access.as_user, access.process
    if not access.admin:
        _create_topic(access)
    with source.open("rb") as text:
        subprocess.run(_parley("produce", *to, "--topic", TOPIC, reads=source), stdin=text, check=True)
    leader = _describe(access.as_admin)
    with _Sending(access.bootstrap, lines, access.settings) as sending:
        sending.wait_for(int(BEFORE_S * RATE))
        pid = _pid_of(process, leader)
        print(f"\n$ kill -9 {pid}     # broker {leader}, the leader, while lines are being sent", flush=True)
        os.kill(pid, signal.SIGKILL)
        sending.killed()
        sending.wait_for(int(AFTER_S * RATE))
    _describe(access.as_admin)
    count = str(len(lines) + len(sending.sent))
    reading = _parley(
        "consume",
        *to,
        "--topic",
        TOPIC,
        *access.group,
        "--from-beginning",
        "--max-messages",
        count,
        "--timeout-ms",
        "60000",
    )
    output = subprocess.run(reading, stdout=subprocess.PIPE, check=False).stdout
    return sending, list(lines_of(BytesIO(output)))


def _describe(to: Sequence[str]) -> int:
    """Run the command that describes the topic. Returns the id of its leader. Ends the program if there is none."""
    text = subprocess.run(
        _parley("topics", *to, "--describe", "--topic", TOPIC), stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    print(text, end="", flush=True)
    leader = re.search(r"Leader: (\d+)", text)
    if leader is None:
        raise SystemExit("The partition has no leader.")
    return int(leader[1])


def _pid_of(process: subprocess.Popen[str], broker: int) -> int:
    """Return the process id of a broker, which is a child process of the start command. Ends the program if there is
    none."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in children:
        if f"broker.id={broker}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return int(pid)
    raise SystemExit(f"Broker {broker} has no process.")


@dataclass
class _Sending:
    """A producer in a thread, with the lines that it has sent and the times of their acknowledgements."""

    bootstrap: str
    lines: list[bytes]
    settings: Mapping[str, Any] = field(default_factory=dict)
    sent: list[bytes] = field(default_factory=list)
    acknowledged_at: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    killed_at: float = 0.0
    _over: Event = field(default_factory=Event)

    def __enter__(self) -> _Sending:
        self._thread = Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        quick = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20, "log_level": 0}
        refresh = {"topic.metadata.refresh.fast.interval.ms": 20, "message.timeout.ms": int(PAUSE_MAX_S * 1000)}
        safe = {"acks": "all", "enable.idempotence": True, "linger.ms": 1}
        producer = Producer({"bootstrap.servers": self.bootstrap, **quick, **refresh, **safe, **self.settings})
        began = time.monotonic()
        for line in cycle(self.lines):
            if self._over.is_set():
                break
            self.sent.append(line)
            producer.produce(TOPIC, line, partition=0, on_delivery=self._on_delivery)
            producer.poll(max(0.0, began + len(self.sent) / RATE - time.monotonic()))
        producer.flush(PAUSE_MAX_S)

    def _on_delivery(self, error: object, message: Any) -> None:
        if error is None:
            self.acknowledged_at.append(time.monotonic())
        else:
            self.failed.append(str(error))

    def wait_for(self, more: int) -> None:
        """Wait until this many more lines are acknowledged, or the producer's thread ends, for at most ``PAUSE_MAX_S``
        seconds. The final report names missing lines."""
        goal, deadline = len(self.acknowledged_at) + more, time.monotonic() + PAUSE_MAX_S
        while len(self.acknowledged_at) < goal and time.monotonic() < deadline and self._thread.is_alive():
            time.sleep(0.005)

    def killed(self) -> None:
        """Record that the leader has just been killed."""
        self.killed_at = time.monotonic()

    @property
    def pause_s(self) -> float:
        """The longest time without an acknowledgement since the kill, in seconds; 0 if there was none after the
        kill."""
        times = [at for at in self.acknowledged_at if at >= self.killed_at]
        return max(
            (later - earlier for earlier, later in zip([self.killed_at, *times], times, strict=False)), default=0
        )


def _report(sent: list[bytes], received: list[bytes], sending: _Sending, seconds: float) -> int:
    digests = [hashlib.sha256(b"\n".join(lines)).hexdigest()[:16] for lines in (sent, received)]
    print(f"\nproduced {len(sent):>8} records   sha256 {digests[0]}")
    print(f"consumed {len(received):>8} records   sha256 {digests[1]}")
    unknown = len(sending.sent) - len(sending.acknowledged_at)
    if unknown:
        reasons = ", ".join(sorted(set(sending.failed))) or "no response"
        print(f"\n{plural(unknown, 'line')} not acknowledged ({reasons}).", file=sys.stderr)
    if sent != received:
        first = next((i for i, pair in enumerate(zip(sent, received, strict=False)) if pair[0] != pair[1]), None)
        where = min(len(sent), len(received)) if first is None else first
        print(f"\nThe lines differ from line {where + 1} on.", file=sys.stderr)
    if sent != received or unknown:
        return 1
    count, pause = len(sending.sent), sending.pause_s
    print(f"\n{count} lines were acknowledged while the leader died; the longest wait was {pause:.2f} s.")
    print(f"No line is missing, duplicated or out of order. {seconds:.1f} s altogether.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
