"""Simulated operating system processes that share one event loop.

Rules of this module:

* Everything a process does runs in a context that names it: tasks and callbacks inherit it from whoever made them, so
  code that knows nothing of the simulation stays in its process.
* A process that is stopped or dead runs nothing. What would have run is held: it runs in order when the process is
  resumed, and never when it is dead, unless :meth:`Process.bury` lets the dead clean up after the end of the world.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from parley.tools.simulation.virtual_time_loop import Due, SimulatedLoop

T = TypeVar("T")


class ProcessState(Enum):
    """Whether a process runs."""

    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"


class Process:
    """One process on a host; a restart makes another one."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.state = ProcessState.RUNNING
        self.held: deque[Due] = deque()
        """What waits for the process to run again."""
        self._context = Context()
        self._context.run(CURRENT.set, self)

    def __repr__(self) -> str:
        return f"<{self.name} on {self.host}, {self.state.value}>"

    @property
    def runs(self) -> bool:
        """Whether its callbacks are carried out."""
        return self.state is ProcessState.RUNNING

    @property
    def context(self) -> Context:
        """A new context of this process, to call or schedule something in its name."""
        return self._context.copy()

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call now, in the name of this process."""
        return self.context.run(function, *args)

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run ``work`` as a task of this process."""
        return asyncio.get_running_loop().create_task(work, name=name, context=self.context)

    def stop(self) -> None:
        """SIGSTOP."""
        if self.runs:
            self.state = ProcessState.STOPPED

    def resume(self, loop: SimulatedLoop) -> None:
        """SIGCONT: what was due in the meantime runs now."""
        if self.state is ProcessState.STOPPED:
            self._release(loop)

    def die(self) -> None:
        """SIGKILL, or the end of its machine."""
        self.state = ProcessState.DEAD

    def bury(self, loop: SimulatedLoop) -> None:
        """After the end of the world: let a dead process run its ``finally`` blocks and give back what it holds."""
        if not self.runs:
            self._release(loop)

    def _release(self, loop: SimulatedLoop) -> None:
        self.state = ProcessState.RUNNING
        held, self.held = self.held, deque()
        loop.take_back(held)


CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)
"""The process that runs now; None for the world around: network, store, checks."""
