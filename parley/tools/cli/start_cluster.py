"""``parley start --brokers N``: run a cluster on this machine, with one child process per broker.

Rules:

1. The brokers have the ids 1 to N, or from the file's ``broker.id`` on, and listen on consecutive ports. The data of
   each is in ``broker-<id>`` below every folder of ``log.dirs``; the embedded store is in ``coordination`` there.
   Their ``broker.host.label`` is the machine's name, so that replicas are placed on other machines if there are any.
2. The brokers' logs go to standard error, each line with its ``broker.id``. The summary goes to standard output once
   all brokers serve; its last line ends with ``bootstrap.servers=host:port,host:port,...``.
3. SIGTERM and SIGINT stop the brokers one after another, so that each can hand over its leaderships. A second SIGINT
   kills them. If this process dies, they stop.
4. A broker that exits unexpectedly is reported, and restarted only with ``--restart``; the others continue. If none is
   left, the exit code is 1. If a broker fails before the cluster is ready, all brokers are stopped.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from parley.tools.cli.invocation import FAILED, CommandError
from parley.tools.cli.ports import free_or_any, is_taken
from parley.tools.ending_with_parent import ending_with_parent

BOOTSTRAP: Final = "bootstrap.listeners"
BROKERS_MAX: Final = 100
RESTART_PAUSE_S: Final = 1.0
_OTHER_PORTS: Final = 10_000
"""The difference between a port in use and the port that is suggested instead."""
_READY: Final = "bootstrap.servers="
_NOTES: Final = ("listens", "warning")
"""The labels of a broker's notes about its listeners."""
_LINE_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Given:
    """The settings for all brokers, from a properties file (``file``, None if there is none) and from overrides.

    ``settings`` contains the values that config providers supplied. ``typed`` contains the overrides as the user typed
    them.
    """

    settings: Mapping[str, str]
    typed: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One broker's id, and the settings with which it is started."""

    broker_id: int
    settings: Mapping[str, str]
    given: Given

    def words(self) -> list[str]:
        """Return the arguments of ``parley`` that start the broker.

        Every user of the machine can read the arguments of a process. Therefore the broker itself reads the properties
        file and queries the config providers. The arguments contain only the overrides as typed, and the settings that
        differ per broker.
        """
        given = self.given
        overrides = {
            key: given.typed.get(key, value) if given.settings.get(key) == value else value
            for key, value in self.settings.items()
            if given.file is None or key in given.typed or given.settings.get(key) != value
        }
        if "node.id" in given.settings:  # a synonym of broker.id, which the file may have
            overrides["node.id"] = str(self.broker_id)
        file = [] if given.file is None else [str(given.file)]
        return [
            "start",
            *file,
            *(word for key, value in overrides.items() for word in ("--override", f"{key}={value}")),
        ]


def plans(given: Given, brokers: int, *, port: int | None = None, bootstrap_port: int | None = None) -> list[Plan]:
    """Derive each broker's settings from those given for all. Raises ``CommandError`` if a setting is impossible.

    The first listeners of all brokers also listen on ``bootstrap_port``, if there is one.
    """
    from parley.broker.config.presets import COMMAND, of_cluster

    if not 1 <= brokers <= BROKERS_MAX:
        raise CommandError(f"--brokers takes 1 to {BROKERS_MAX}, not {brokers}.")
    has_file = given.file is not None
    defaults = {} if has_file else {**of_cluster(brokers), "metrics.listener": COMMAND["metrics.listener"]}
    settings = {**defaults, **given.settings}
    first = _first_id(settings)
    folders = [part.strip() for part in settings.pop("log.dirs", "").split(",") if part.strip()]
    folders = folders or [settings.pop("log.dir", "") or COMMAND["log.dirs"]]
    folders = [str(Path(folder).absolute()) for folder in folders]
    if "zookeeper.connect" not in settings:
        settings.setdefault("coordination.url", f"local://{folders[0]}/coordination")
    listeners = settings.pop("listeners", COMMAND["listeners"])
    settings.setdefault("broker.host.label", socket.gethostname())
    if port is not None:
        listeners = _at_port(listeners, port)
    if bootstrap_port is not None:
        settings[BOOTSTRAP] = f"{_head_and_port(listeners.split(',')[0])[0]}:{bootstrap_port}"
    return [
        Plan(
            first + step,
            {
                **_moved(settings, step),
                "broker.id": str(first + step),
                "listeners": _shifted(listeners, step),
                "log.dirs": ",".join(f"{folder}/broker-{first + step}" for folder in folders),
            },
            given,
        )
        for step in range(brokers)
    ]


def _first_id(settings: dict[str, str]) -> int:
    given = settings.pop("broker.id", None), settings.pop("node.id", None)
    text = next((each for each in given if each not in (None, "", "-1")), "1")
    if text is None or not text.isdecimal():
        raise CommandError(f"broker.id={text} is not a number. The ids of the brokers count up from it.")
    return int(text)


def _moved(settings: Mapping[str, str], step: int) -> dict[str, str]:
    """Return the settings with all ports raised by ``step``, so that the brokers do not share ports. Only the first
    broker runs the console."""
    moved = dict(settings)
    if step:
        moved.pop("console.listener", None)
    for key in ("advertised.listeners", "metrics.listener"):
        if moved.get(key):
            moved[key] = _shifted(moved[key], step)
    if metrics := moved.get("metrics.listener"):
        moved["metrics.listener"] = free_or_any(metrics)
    return moved


def _shifted(addresses: str, step: int) -> str:
    """Raise the port of each address by ``step``. Port 0 stays, because it means any free port."""
    return ",".join(
        f"{head}:{int(port) + step if int(port) else 0}" for head, port in map(_head_and_port, addresses.split(","))
    )


def _at_port(addresses: str, port: int) -> str:
    """Assign this port to the first address, and the following ports to the others."""
    heads = [head for head, _ in map(_head_and_port, addresses.split(","))]
    return ",".join(f"{head}:{port + index if port else 0}" for index, head in enumerate(heads))


def _head_and_port(address: str) -> tuple[str, str]:
    head, _, port = address.strip().rpartition(":")
    if not port.isdecimal():
        raise CommandError(f"'{address.strip()}' has no port: the brokers' ports are counted from it.")
    return head, port


def _is_taken(address: str) -> bool:
    head, port = _head_and_port(address)
    return is_taken(head.strip("[]"), int(port))


def _other_port(address: str, count: int) -> int:
    """Return a port to suggest instead of that of ``address``, for ``count`` addresses in a row."""
    port = int(_head_and_port(address)[1])
    return port + _OTHER_PORTS if port + _OTHER_PORTS + count < 1 << 16 else port - _OTHER_PORTS


def refuse_ports_in_use(plans: Sequence[Plan]) -> None:
    """Raise ``CommandError``, with one remedy for the whole cluster, if other processes use ports of its brokers."""
    from parley.storage.log_directory import is_in_use

    shared = plans[0].settings.get(BOOTSTRAP, "")
    texts = [plan.settings["listeners"] for plan in plans] + [shared] * bool(shared)
    addresses = [each.rpartition("//")[2] for text in texts for each in text.split(",")]
    busy = [each for each in addresses if _is_taken(each)]
    if not busy:
        return
    port = _other_port(addresses[0], len(addresses))
    options = f"--port {port}" + (f" --bootstrap-port {_other_port(addresses[-1], 1)}" if shared else "")
    where = f"{', '.join(busy)} {'is' if len(busy) == 1 else 'are'} in use"
    settings = plans[0].settings
    folders = [Path(each) for plan in plans for each in plan.settings["log.dirs"].split(",")]
    if not any(map(is_in_use, folders)):
        raise CommandError(
            f"{where}. Is another broker running? Stop it, or start this cluster at other ports: {options} "
            f"(`make cluster PORT={port}`)."
        )
    folder = folders[0].parent
    is_embedded = settings.get("coordination.url") == f"local://{folder}/coordination"
    raise CommandError(
        f"{where}, and a broker runs in {folder}. Stop that cluster, or start this one at other ports, in another "
        f"folder{'' if is_embedded else ' and on another store'}: {options} --override log.dirs={folder}-2 "
        f"(`make cluster PORT={port} FOLDER={folder}-2`)."
    )


class _Child:
    """A child process that runs one broker."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.facts: dict[str, str] = {}
        """The lines of the summary that the broker printed, by their first word."""
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._ready = asyncio.Event()

    @property
    def name(self) -> str:
        return f"broker {self.plan.broker_id}"

    async def start(self) -> bool:
        """Start the broker and wait until it serves. Returns False if it exits instead."""
        self._ready.clear()
        self._process = await asyncio.create_subprocess_exec(
            *ending_with_parent([sys.executable, "-m", "parley", *self.plan.words()]),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
            process_group=0,  # so that Ctrl-C reaches only this process, which stops the brokers in turn
        )  # fmt: skip
        self._readers = [
            asyncio.ensure_future(self._read(self._process.stdout, self._heard)),
            asyncio.ensure_future(self._read(self._process.stderr, self._logged)),
        ]
        ready = asyncio.ensure_future(self._ready.wait())
        ended = asyncio.ensure_future(self._process.wait())
        await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        return self._ready.is_set()

    async def _read(self, stream: asyncio.StreamReader | None, said: object) -> None:
        assert stream is not None
        assert callable(said)
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # the line exceeds the limit; its rest is read next
                continue
            if not line:
                return
            said(line.decode(errors="replace").rstrip("\n"))

    def _heard(self, line: str) -> None:
        key, _, value = line.strip().partition(" ")
        self.facts[key] = value.strip()
        if _READY in line:
            self._ready.set()

    def _logged(self, line: str) -> None:
        sys.stderr.write(labeled(line, self.plan.broker_id) + "\n")
        sys.stderr.flush()

    async def ended(self) -> int:
        """Wait until the process has exited and its output has been read. Returns the exit code, negative
        for a signal."""
        assert self._process is not None
        code = await self._process.wait()
        await asyncio.gather(*self._readers)
        return code

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process is running."""
        if self._process is not None and self.is_running:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def labeled(line: str, broker_id: int) -> str:
    """Prefix a line of a broker's log with the broker's id, in the format of the line."""
    if line.startswith('{"'):
        return f'{{"broker.id": {broker_id}, {line[1:]}'
    return f"broker.id={broker_id} {line}" if line else line


def run(plans: Sequence[Plan], *, restart: bool) -> int:
    """Run the cluster until a signal stops it or no broker is left. Returns the exit code."""
    return asyncio.run(_Cluster(plans, restart).live())


class _Cluster:
    """Starts, watches and stops the brokers."""

    def __init__(self, plans: Sequence[Plan], restart: bool) -> None:
        self._children = [_Child(plan) for plan in plans]
        self._restart = restart
        self._stop_requested = asyncio.Event()
        self._interrupts = 0

    async def live(self) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        loop.add_signal_handler(signal.SIGTERM, self._stop_requested.set)
        starts = [asyncio.ensure_future(child.start()) for child in self._children]
        stop = asyncio.ensure_future(self._stop_requested.wait())
        await asyncio.wait({asyncio.ensure_future(asyncio.wait(starts)), stop}, return_when=asyncio.FIRST_COMPLETED)
        if not self._stop_requested.is_set():
            served = [start.result() for start in starts]
            if not all(served):
                return await self._give_up(served)
            print(summary(self._children), flush=True)
            lives = [asyncio.ensure_future(self._watch(child)) for child in self._children]
            over = asyncio.ensure_future(asyncio.wait(lives))
            await asyncio.wait({over, stop}, return_when=asyncio.FIRST_COMPLETED)
            for life in lives:
                life.cancel()
        stop.cancel()
        if not self._stop_requested.is_set():
            print("Error: no broker is left; the logs above say why.", file=sys.stderr)
            return FAILED
        return await self._stop()

    async def _give_up(self, served: Sequence[bool]) -> int:
        failed = [child.name for child, ready in zip(self._children, served, strict=True) if not ready]
        await self._stop()
        print(f"Error: {', '.join(failed)} did not start; the log above says why.", file=sys.stderr)
        return FAILED

    async def _watch(self, child: _Child) -> None:
        while True:
            code = await child.ended()
            if self._stop_requested.is_set():
                return
            print(f"{child.name[0].upper()}{child.name[1:]} exited{_how(code)}. {self._next(child)}", file=sys.stderr)
            if not self._restart:
                return
            await asyncio.sleep(RESTART_PAUSE_S)
            if await child.start():
                print(f"{child.name[0].upper()}{child.name[1:]} serves again.", file=sys.stderr)

    def _next(self, child: _Child) -> str:
        if self._restart:
            return "It is restarted."
        others = "The others continue. " if any(each.is_running for each in self._children) else ""
        return f"{others}To restart it: parley {shlex.join(child.plan.words())}"

    async def _stop(self) -> int:
        """Stop the brokers one after another. Returns 0 if each running broker stopped cleanly."""
        codes = []
        for child in reversed(self._children):
            if child.is_running:
                child.signal(signal.SIGTERM)
                codes.append(await child.ended())
        return FAILED if any(codes) else 0

    def _interrupted(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            print("\nKilled; the next start recovers the logs.", file=sys.stderr, flush=True)
            for child in self._children:
                child.signal(signal.SIGKILL)
            os._exit(130)
        print("\nStopping one broker after another. Press Ctrl-C again to kill them.", file=sys.stderr, flush=True)
        self._stop_requested.set()


def _how(code: int) -> str:
    return f" (killed by {signal.Signals(-code).name})" if code < 0 else f" with exit code {code}"


def summary(children: Sequence[_Child]) -> str:
    """Return the summary for the person who started the cluster."""
    cluster = children[0].facts.get("Broker", "").partition(" of cluster ")[2].partition(" ")[0]
    ids = [str(child.plan.broker_id) for child in children]
    servers = ",".join(child.facts["clients"].removeprefix(_READY) for child in children)
    lines = [f"Brokers {', '.join(ids)} of cluster {cluster} are ready."]
    lines += [f"  data     {child.plan.settings['log.dirs']}" for child in children]
    lines += [f"  metrics  {child.facts['metrics']}" for child in children if "metrics" in child.facts]
    for label in _NOTES:
        lines += [f"  {label:<7}  {child.facts[label]}" for child in children if label in child.facts]
    shared = children[0].plan.settings.get(BOOTSTRAP, "").split(",")[0]
    if shared:
        lines.append(f"  brokers  {servers}")
        servers = f"{_head_and_port(servers.split(',')[0])[0]}:{_head_and_port(shared)[1]}"
    lines += ["  stop     Ctrl-C, or SIGTERM", f"  clients  {_READY}{servers}"]
    return "\n".join(lines)
