"""Members of simulated groups. Each member is run by one process after another.

Processes leave, die, freeze for longer than their session, and come back; a static member may also be replaced while
its process still runs. The group's protocol defines what a process does (``group_members.py``,
``reconciling_members.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Final

from parley.tools.simulation.group_reading import GroupReader
from parley.tools.simulation.processes import Process
from parley.tools.simulation.world import World

SESSION_S: Final = 6.0
"""The shortest session timeout that brokers allow by default for the classic protocol."""

Addresses = Sequence[tuple[str, int]]
Begin = Callable[[str, Addresses, Random, str | None], GroupReader]
"""Creates the client of a member for a process, from its name, the brokers, its random generator, and its group
instance id."""


class _Fate(Enum):
    """What happens to the process of a group member."""

    STANDS_STILL = auto()
    DIES = auto()
    LEAVES = auto()
    IS_REPLACED = auto()


@dataclass(slots=True, eq=False)
class _Life:
    """A process of a group member, with its client and its task."""

    member: GroupReader
    process: Process
    task: asyncio.Task[None]


class GroupConsumer:
    """A member of the group, run by one process after another until ``settle``. The last process consumes until
    ``stop``.

    Its task belongs to no simulated process, because it stops and kills processes.
    """

    def __init__(
        self,
        name: str,
        world: World,
        releases: Callable[[str], None],
        begin: Begin,
        *,
        is_static: bool,
        stays_away: bool,
    ) -> None:
        """``releases`` is called with the name of each process that has died. If ``stays_away`` is True, the last
        process dies when the faults have ended, and is not replaced."""
        self.name = name
        self._world = world
        self._releases = releases
        self._make = begin
        self._rng = world.random(name)
        self._instance_id = name if is_static else None
        self._stays_away = stays_away
        self._settled = asyncio.Event()
        self._stopped = asyncio.Event()
        self._lives: list[_Life] = []
        """All processes that have not been killed."""
        self._newest: _Life | None = None
        """The process that should consume. None once it was killed or asked to leave."""
        self._number = 0

    def settle(self) -> None:
        """Keep the current process from now on, so that the member consumes undisturbed."""
        self._settled.set()
        for life in self._lives:
            life.member.is_settled = True

    def stop(self) -> None:
        """Make the member leave. Its task ends soon afterwards."""
        self._stopped.set()

    @property
    def consuming(self) -> str | None:
        """The name of the process that should consume, or None."""
        return self._newest.member.name if self._newest is not None else None

    async def live(self, topic: str, partitions: Sequence[int]) -> None:
        """Run one process after another until ``settle``, and the last one until ``stop``."""
        while not self._settled.is_set():
            life = self._begin(topic, partitions)
            while (fate := await self._next_fate()) is _Fate.STANDS_STILL:
                self._note(life, "stands still")
                life.process.stop()
                await self._pause(self._rng.uniform(0.5, 1.5) * SESSION_S)
                life.process.resume(self._world.loop.take_back)
                self._note(life, "runs again")
            await self._meet(fate, life)
        if self._stays_away:
            for life in list(self._lives):
                self._kill(life)
        elif self._newest is None:
            self._begin(topic, partitions)
        await self._stopped.wait()
        for life in self._lives:
            life.member.stopping = True
        await asyncio.gather(*(life.task for life in self._lives))

    async def _next_fate(self) -> _Fate | None:
        """Wait for a while, then choose what happens to the process. Returns None if the member was settled in the
        meantime."""
        await self._pause(self._rng.uniform(1.0, 8.0))
        if self._settled.is_set():
            return None
        return self._rng.choice([each for each in _Fate if each is not _Fate.IS_REPLACED or self._instance_id])

    async def _meet(self, fate: _Fate | None, life: _Life) -> None:
        """Do to a process what ``fate`` says, and wait until the next process may start."""
        match fate:
            case _Fate.DIES:
                self._kill(life)
                await self._pause(self._rng.choice((self._rng.uniform(0.0, 2.0), self._rng.uniform(2.0, 12.0))))
            case _Fate.LEAVES:
                self._newest = None
                life.member.stopping = True
                await self._pause(self._rng.uniform(0.0, 8.0))
            case _Fate.IS_REPLACED:
                self._note(life, "is replaced")

    async def _pause(self, seconds: float) -> None:
        """Wait for this many seconds, or until ``settle``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()

    def _begin(self, topic: str, partitions: Sequence[int]) -> _Life:
        self._number += 1
        name = f"{self.name}.{self._number}"
        addresses = [machine.address for machine in self._world.machines.values()]
        member = self._make(name, addresses, self._world.random(name), self._instance_id)
        member.is_settled = self._settled.is_set()
        process = self._world.client_process(name, host=self.name)
        for older in self._lives:
            older.member.is_newest = False
        life = self._newest = _Life(member, process, process.start(member.live(topic, partitions), name=name))
        self._lives.append(life)
        return life

    def _kill(self, life: _Life) -> None:
        self._note(life, "dies")
        self._newest = None
        self._lives.remove(life)
        life.process.die()
        self._world.network.process_died(life.process, silently=False)
        self._releases(life.member.name)

    def _note(self, life: _Life, what: str) -> None:
        self._world.history.note("world", f"{life.member.name} {what}")
