"""An event loop with virtual time: when nothing is left to do, its clock jumps to the next timer.

* Callbacks due at the same time run in the order in which they were scheduled. Nothing depends on a thread, a file
  descriptor, the machine's clock or a memory address, so the same work under the same seed always runs in the same way.
* Executor jobs run in the loop, after a delay drawn from the seed. Overlapping jobs may finish in a different order, as
  they do in threads.
* ``sockets``, such as a ``network.Network``, provides the sockets.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import Context
from heapq import heapify, heappop, heappush
from typing import Any, Protocol, TypeVar, TypeVarTuple

from parley.tools.simulation.processes import Due, ProcessHandle, ProcessTimer

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEPS_PER_INSTANT_MAX = 500_000
"""The maximum number of callbacks at one point in virtual time. If there are more, the loop raises ``Stuck``."""
_CANCELLED_MIN = 1000


class Stuck(RuntimeError):
    """Raised if every task waits and no timer is set, or if callbacks run endlessly at one point in virtual time."""


class Sockets(Protocol):
    """The network functions that a loop needs."""

    def watch(self, number: int, reader: asyncio.Handle | None) -> bool:
        """Call ``reader`` while connections wait at this listening socket. None removes the callback. Returns False if
        the socket is unknown."""
        ...

    async def connect(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect from the host of the running process. Raises OSError if that fails."""
        ...


class SimulatedLoop(asyncio.BaseEventLoop):
    """The event loop of a simulated world."""

    _stopping: bool

    def __init__(self, *, executor_delay: Callable[[], float] = lambda: 0.0) -> None:
        """``executor_delay()`` returns how many seconds the next job of an executor takes."""
        super().__init__()
        self.sockets: Sockets | None = None
        self.on_error: Callable[[dict[str, Any]], None] = lambda context: None
        """Called with the context of each unhandled error that asyncio reports."""
        self._executor_delay = executor_delay
        self._now = 1000.0
        self._due: deque[Due] = deque()
        self._timers: list[tuple[float, int, ProcessTimer]] = []
        self._timers_made = 0
        self._cancelled = 0
        self._steps_now = 0
        self.steps = 0
        """The number of callbacks run so far."""

    # --- Running ---

    def _run_once(self) -> None:
        """Run everything that is due, then move the clock to the next timer."""
        ready = self._due
        while ready and not self._stopping:
            handle = ready.popleft()
            if handle.cancelled():
                continue
            process = handle.process
            if process is not None and not process.runs:
                process.held.append(handle)
                continue
            self.steps += 1
            self._steps_now += 1
            if self._steps_now > STEPS_PER_INSTANT_MAX:
                raise Stuck(f"{STEPS_PER_INSTANT_MAX} callbacks ran while no time passed; the last one is {handle}")
            handle._run()
        if not self._stopping:
            self._advance()

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
            self._cancelled -= 1
        if not timers:
            raise Stuck("deadlock: everything waits, and no timer is set")
        if timers[0][0] > self._now:
            self._now, self._steps_now = timers[0][0], 0
        while timers and timers[0][0] <= self._now:
            timer = heappop(timers)[2]
            timer.waits = False
            if timer.cancelled():
                self._cancelled -= 1
            else:
                self._due.append(timer)

    # --- Scheduling ---

    def take_back(self, due: Iterable[Due]) -> None:
        """Schedule the held callbacks of a process to run now, in this order."""
        self._due.extend(due)

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = ProcessHandle(callback, args, self, context)
        self._due.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = ProcessTimer(when, callback, args, self, context)
        self._timers_made += 1
        heappush(self._timers, (when, self._timers_made, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, ProcessTimer) and handle.waits:
            self._cancelled += 1
            if self._cancelled > max(_CANCELLED_MIN, len(self._timers) // 2):
                self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
                heapify(self._timers)
                self._cancelled = 0

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)

        self.call_later(self._executor_delay(), work)
        return done

    # --- Errors ---

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.on_error(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.on_error(context)

    # --- Sockets ---

    def add_reader(self, fd: Any, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        self._sockets().watch(fd, ProcessHandle(callback, args, self, None))

    def remove_reader(self, fd: Any) -> bool:
        return self._sockets().watch(fd, None)

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **kwargs: Any) -> Any:
        protocol = protocol_factory()
        sock.end.connect(protocol)
        return sock.end, protocol

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **kwargs: Any) -> Any:
        return await self._sockets().connect(protocol_factory, host, port)

    def _sockets(self) -> Sockets:
        if self.sockets is None:
            raise RuntimeError("this simulation has no network")
        return self.sockets


_ROUNDS_OF_CANCELLING = 3
_SECONDS_TO_END = 60.0


def run(loop: SimulatedLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` and return its result. Then cancel all other tasks, and close the loop. Raises Stuck if ``work`` can
    never end."""
    events.set_event_loop(loop)
    try:
        result: T = loop.run_until_complete(work)
        return result
    finally:
        _end_the_rest(loop)
        events.set_event_loop(None)
        loop.close()


def _end_the_rest(loop: SimulatedLoop) -> None:
    """Cancel every task, so that the garbage collector does not destroy one at an arbitrary time."""

    async def cancel() -> None:
        mine = asyncio.current_task()
        for _ in range(_ROUNDS_OF_CANCELLING):
            tasks = sorted(
                (task for task in asyncio.all_tasks(loop) if task is not mine), key=lambda each: each.get_name()
            )
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_SECONDS_TO_END)

    loop.on_error = lambda context: None
    with suppress(Stuck):
        loop.run_until_complete(cancel())
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
