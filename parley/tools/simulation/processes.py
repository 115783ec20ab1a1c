"""Simulated operating system processes that share an event loop.

* Everything that a process does runs in a context that names the process. Tasks and callbacks inherit the context from
  their creator, so code that does not know about the simulation stays in its process.
* A stopped or dead process runs nothing. Its callbacks are held. When it is resumed they run in order; if it is dead
  they never run, except that ``Process.bury`` lets dead processes clean up after the end of the run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, ContextVar, copy_context
from enum import Enum
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")


class ProcessState(Enum):
    """The state of a process."""

    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"


class Process:
    """A process on a host. A restart creates another process."""

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
        """True if the process is neither stopped nor dead."""
        return self.state is ProcessState.RUNNING

    @property
    def context(self) -> Context:
        """A new copy of the context of this process, in which to call or schedule something."""
        return self._context.copy()

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function now, in the context of this process."""
        return self.context.run(function, *args)

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run ``work`` as a task of this process."""
        return asyncio.get_running_loop().create_task(work, name=name, context=self.context)

    def stop(self) -> None:
        """SIGSTOP: hold the callbacks of the process."""
        if self.runs:
            self.state = ProcessState.STOPPED

    def resume(self, schedule: Callable[[Iterable[Due]], None]) -> None:
        """SIGCONT: call ``schedule`` with the held callbacks, to run now, in this order."""
        if self.state is ProcessState.STOPPED:
            self._release(schedule)

    def die(self) -> None:
        """End the process, as for SIGKILL or a crash of its machine."""
        self.state = ProcessState.DEAD

    def bury(self, schedule: Callable[[Iterable[Due]], None]) -> None:
        """Let a stopped or dead process run its ``finally`` blocks, so that it releases its resources. Call it after
        the end of the run."""
        if not self.runs:
            self._release(schedule)

    def _release(self, schedule: Callable[[Iterable[Due]], None]) -> None:
        self.state = ProcessState.RUNNING
        held, self.held = self.held, deque()
        schedule(held)


CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)
"""The simulated process that is running now. None while the network, the store or the checks run."""


# --- Callbacks ---


class ProcessHandle(asyncio.Handle):
    """A callback of the process in whose context it runs."""

    __slots__ = ("process",)

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        context = context if context is not None else copy_context()
        super().__init__(callback, args, loop, context)
        self.process: Process | None = context.get(CURRENT)


class ProcessTimer(asyncio.TimerHandle):
    """A callback of a process at a given time."""

    __slots__ = ("process", "waits")

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        context = context if context is not None else copy_context()
        super().__init__(when, callback, args, loop, context)
        self.process: Process | None = context.get(CURRENT)
        self.waits = True
        """True until the timer is due."""


Due: TypeAlias = ProcessHandle | ProcessTimer
"""A callback that is due."""
