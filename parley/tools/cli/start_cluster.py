"""``parley start --brokers N``: a cluster on this machine, a process for each broker, under one roof.

Rules:

1. The brokers have the ids 1 to N (or from the file's ``broker.id`` on). Each listens one port above the one before;
   its data lies in ``broker-<id>`` below every folder of ``log.dirs``, the embedded store in ``coordination`` there.
2. The brokers' logs go to standard error as one stream, each line with its ``broker.id``. Standard output has the
   summary once all of them serve; its last line ends with ``bootstrap.servers=host:port,host:port,...``.
3. SIGTERM and SIGINT stop the brokers in order, one after another, so that each can give its leaders away; a second
   SIGINT ends them at once. If this process dies, they stop by themselves.
4. A broker that ends by itself is told of and stays down, unless ``--restart`` was given; the others go on. When none
   is left the command ends with exit code 1. A broker that fails before the cluster was ready ends all of it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shlex
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from parley.tools.cli.invocation import FAILED, CommandError

BROKERS_MAX: Final = 100
RESTART_PAUSE_S: Final = 1.0
_PR_SET_PDEATHSIG: Final = 1
_READY: Final = "bootstrap.servers="
_LINE_BYTES_MAX: Final = 1 << 20
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Plan:
    """How one broker is started."""

    broker_id: int
    settings: Mapping[str, str]

    def words(self) -> list[str]:
        """The arguments of ``parley`` that start it."""
        return ["start", *(word for key, value in self.settings.items() for word in ("--override", f"{key}={value}"))]


def plans(given: Mapping[str, str], brokers: int, *, port: int | None = None, has_file: bool = False) -> list[Plan]:
    """The settings of each broker, from those given for all. Raises ``CommandError``."""
    from parley.broker.config.presets import COMMAND, of_cluster

    if not 1 <= brokers <= BROKERS_MAX:
        raise CommandError(f"--brokers takes 1 to {BROKERS_MAX}, not {brokers}.")
    defaults = {} if has_file else {**of_cluster(brokers), "metrics.listener": COMMAND["metrics.listener"]}
    settings = {**defaults, **given}
    first = _first_id(settings)
    folders = [part.strip() for part in settings.pop("log.dirs", "").split(",") if part.strip()]
    folders = folders or [settings.pop("log.dir", "") or COMMAND["log.dirs"]]
    folders = [str(Path(folder).absolute()) for folder in folders]
    if "zookeeper.connect" not in settings:
        settings.setdefault("coordination.url", f"local://{folders[0]}/coordination")
    listeners = settings.pop("listeners", COMMAND["listeners"])
    if port is not None:
        listeners = _at_port(listeners, port)
    return [
        Plan(
            first + step,
            {
                **_moved(settings, step),
                "broker.id": str(first + step),
                "listeners": _shifted(listeners, step),
                "log.dirs": ",".join(f"{folder}/broker-{first + step}" for folder in folders),
            },
        )
        for step in range(brokers)
    ]


def _first_id(settings: dict[str, str]) -> int:
    given = settings.pop("broker.id", None), settings.pop("node.id", None)
    text = next((each for each in given if each not in (None, "", "-1")), "1")
    if text is None or not text.isdecimal():
        raise CommandError(f"broker.id={text} is no number that ids could be counted from.")
    return int(text)


def _moved(settings: Mapping[str, str], step: int) -> dict[str, str]:
    """The settings with every port that this process would share moved on."""
    moved = dict(settings)
    for key in ("advertised.listeners", "metrics.listener"):
        if moved.get(key):
            moved[key] = _shifted(moved[key], step)
    metrics = moved.get("metrics.listener")
    if metrics and not _is_free(metrics):
        moved["metrics.listener"] = _at_port(metrics, 0)
    return moved


def _shifted(addresses: str, step: int) -> str:
    """Addresses by commas, each at a port ``step`` higher; port 0 stays, as any free one is meant."""
    return ",".join(
        f"{head}:{int(port) + step if int(port) else 0}" for head, port in map(_head_and_port, addresses.split(","))
    )


def _at_port(addresses: str, port: int) -> str:
    """The same addresses with the first at this port, and the others at the next ones."""
    heads = [head for head, _ in map(_head_and_port, addresses.split(","))]
    return ",".join(f"{head}:{port + index if port else 0}" for index, head in enumerate(heads))


def _head_and_port(address: str) -> tuple[str, str]:
    head, _, port = address.strip().rpartition(":")
    if not port.isdecimal():
        raise CommandError(f"'{address.strip()}' names no port to count from.")
    return head, port


def _is_free(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return False
    return True


class _Child:
    """One broker's process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.facts: dict[str, str] = {}
        """What its summary says, by the first word of each line."""
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._ready = asyncio.Event()

    @property
    def name(self) -> str:
        return f"broker {self.plan.broker_id}"

    async def start(self) -> bool:
        """Start, and wait until it serves; False if it ended instead."""
        self._ready.clear()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "parley", *self.plan.words(),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
            process_group=0,  # so that Ctrl-C reaches only us, who stop them one after another
            preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
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
            except ValueError:  # longer than any line should be: the rest of it comes next
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
        sys.stderr.write(labelled(line, self.plan.broker_id) + "\n")
        sys.stderr.flush()

    async def ended(self) -> int:
        """Wait for its end, and for what it wrote; the exit code, negative for a signal."""
        assert self._process is not None
        code = await self._process.wait()
        await asyncio.gather(*self._readers)
        return code

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is there to have one."""
        if self._process is not None and self.is_running:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def labelled(line: str, broker_id: int) -> str:
    """A line of a broker's log with the broker's id in front, in the form the line has."""
    if line.startswith('{"'):
        return f'{{"broker.id": {broker_id}, {line[1:]}'
    return f"broker.id={broker_id} {line}" if line else line


def run(plans: Sequence[Plan], *, restart: bool) -> int:
    """Run the cluster until it is told to stop, or nothing is left of it; the exit code."""
    return asyncio.run(_Roof(plans, restart).live())


class _Roof:
    """All brokers and what becomes of them."""

    def __init__(self, plans: Sequence[Plan], restart: bool) -> None:
        self._children = [_Child(plan) for plan in plans]
        self._restart = restart
        self._told = asyncio.Event()
        self._interrupts = 0

    async def live(self) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        loop.add_signal_handler(signal.SIGTERM, self._told.set)
        starts = [asyncio.ensure_future(child.start()) for child in self._children]
        told = asyncio.ensure_future(self._told.wait())
        await asyncio.wait({asyncio.ensure_future(asyncio.wait(starts)), told}, return_when=asyncio.FIRST_COMPLETED)
        if not self._told.is_set():
            served = [start.result() for start in starts]
            if not all(served):
                return await self._give_up(served)
            print(summary(self._children), flush=True)
            lives = [asyncio.ensure_future(self._watch(child)) for child in self._children]
            over = asyncio.ensure_future(asyncio.wait(lives))
            await asyncio.wait({over, told}, return_when=asyncio.FIRST_COMPLETED)
            for life in lives:
                life.cancel()
        told.cancel()
        if not self._told.is_set():
            print("Error: no broker is left; their logs above say why.", file=sys.stderr)
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
            if self._told.is_set():
                return
            print(
                f"{child.name[0].upper()}{child.name[1:]} has ended{_how(code)}. {self._next(child)}", file=sys.stderr
            )
            if not self._restart:
                return
            await asyncio.sleep(RESTART_PAUSE_S)
            if await child.start():
                print(f"{child.name[0].upper()}{child.name[1:]} serves again.", file=sys.stderr)

    def _next(self, child: _Child) -> str:
        if self._restart:
            return "It is started again."
        return f"The others go on; to have it back: parley {shlex.join(child.plan.words())}"

    async def _stop(self) -> int:
        """Stop every broker, one after another; 0 if each of those still running stopped in order."""
        codes = []
        for child in reversed(self._children):
            if child.is_running:
                child.signal(signal.SIGTERM)
                codes.append(await child.ended())
        return FAILED if any(codes) else 0

    def _interrupted(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            print("\nEnded at once; the next start recovers what was not closed.", file=sys.stderr, flush=True)
            for child in self._children:
                child.signal(signal.SIGKILL)
            os._exit(130)
        print("\nStopping one broker after another. Ctrl-C again ends them at once.", file=sys.stderr, flush=True)
        self._told.set()


def _how(code: int) -> str:
    return f" (killed by {signal.Signals(-code).name})" if code < 0 else f" with exit code {code}"


def summary(children: Sequence[_Child]) -> str:
    """What a person who started the cluster wants to know."""
    cluster = children[0].facts.get("Broker", "").partition(" of cluster ")[2].partition(" ")[0]
    ids = [str(child.plan.broker_id) for child in children]
    servers = ",".join(child.facts["clients"].removeprefix(_READY) for child in children)
    lines = [f"Brokers {', '.join(ids)} of cluster {cluster} are ready."]
    lines += [f"  data     {child.plan.settings['log.dirs']}" for child in children]
    lines += [f"  metrics  {child.facts['metrics']}" for child in children if "metrics" in child.facts]
    lines += ["  stop     Ctrl-C, or SIGTERM", f"  clients  {_READY}{servers}"]
    return "\n".join(lines)
