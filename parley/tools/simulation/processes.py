"""Simulated operating system processes that share one event loop.

* Everything that a process does runs in a context that names it. Tasks and callbacks inherit the context from their
  creator, so code that does not know the simulation stays in its process.
* A process that is stopped or dead runs nothing. Its callbacks are held. They run in order when it is resumed, and
  never if it is dead, except that ``Process.bury`` lets dead processes clean up after the end of the run.
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
    """The state of a process."""

    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"


class Process:
    """One process on a host. A restart creates another process."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.state = ProcessState.RUNNING
        self.held: deque[Due] = deque()
        """The callbacks that wait until the process runs again."""
        self._context = Context()
        self._context.run(CURRENT.set, self)

    def __repr__(self) -> str:
        return f"<{self.name} on {self.host}, {self.state.value}>"

    @property
    def runs(self) -> bool:
        """True if its callbacks are run."""
        return self.state is ProcessState.RUNNING

    @property
    def context(self) -> Context:
        """A new context of this process, in which to call or schedule something."""
        return self._context.copy()

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function now, in the context of this process."""
        return self.context.run(function, *args)

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run ``work`` as a task of this process."""
        return asyncio.get_running_loop().create_task(work, name=name, context=self.context)

    def stop(self) -> None:
        """SIGSTOP."""
        if self.runs:
            self.state = ProcessState.STOPPED

    def resume(self, loop: SimulatedLoop) -> None:
        """SIGCONT: the held callbacks run now."""
        if self.state is ProcessState.STOPPED:
            self._release(loop)

    def die(self) -> None:
        """SIGKILL, or a crash of its machine."""
        self.state = ProcessState.DEAD

    def bury(self, loop: SimulatedLoop) -> None:
        """After the end of the run, let a process run its ``finally`` blocks and release its resources."""
        if not self.runs:
            self._release(loop)

    def _release(self, loop: SimulatedLoop) -> None:
        self.state = ProcessState.RUNNING
        held, self.held = self.held, deque()
        loop.take_back(held)


CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)
"""The process that runs now; None for the network, the store and the checks."""
