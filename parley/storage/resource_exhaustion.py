"""Shortages of file descriptors or memory in the process: how to recognize them, and the reserves against them.

Rules (docs/operations.md, "When file descriptors or memory run out"):

1. A shortage is a fault of the process, never of a disk.
2. A thread that runs into a shortage releases the reserve, and makes the owners of files and maps close what they can
   open again. The failed work is then repeated (``with_room``), or fails and leaves room for other work.
3. The limits apply to the process, and so do the reserves. They are empty before ``Reserve.hold``, which only ``parley
   start`` calls; the broker refills them when it can (``parley.broker.runtime.exhaustion_watch``).
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from parley.protocol.errors import ErrorCode, KafkaError

P = ParamSpec("P")
T = TypeVar("T")

DESCRIPTORS_LEFT: Final = 4
"""The number of descriptors that must be free in addition to the reserve before the reserve is refilled."""
MEMORY_LEFT_BYTES: Final = 16 << 20
"""The memory that must be free in addition to the reserve before the reserve is refilled."""

_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
_OF_MEMORY = frozenset({errno.ENOMEM, errno.ENOBUFS})
_NO_THREAD = "can't start new thread"

_log = logging.getLogger(__name__)


class Reserve(ABC):
    """An amount of one of the process's resources that is held back until a shortage. Any thread may use it."""

    def __init__(self, name: str) -> None:
        self.name = name
        """The name of the resource in log lines and in ``/healthz``."""
        self.shortages = 0
        """The number of shortages since the process started."""
        self.lost_work: BaseException | None = None
        """The first shortage that ended work midway, which may have left the state in memory half changed."""
        self._relief: list[Callable[[], object]] = []
        self._lock = threading.RLock()

    @abstractmethod
    def hold(self, amount: int) -> None:
        """Hold ``amount`` (descriptors, or bytes of memory) from now on: release any excess, and let ``refill`` acquire
        what is missing."""

    @property
    @abstractmethod
    def is_released(self) -> bool:
        """True if the reserve holds less than it should."""

    @abstractmethod
    def release(self) -> None:
        """Release everything that the reserve holds."""

    @abstractmethod
    def refill(self) -> bool:
        """Acquire what the reserve lacks. Returns False, and acquires nothing, if too little of the resource would
        remain free."""

    def call_when_short(self, relieve: Callable[[], object]) -> None:
        """Register a function that closes what can be reopened. It is called at every shortage, in any thread."""
        self._relief.append(relieve)

    def forget(self, relieve: Callable[[], object]) -> None:
        """Stop calling ``relieve``, which was passed to ``call_when_short``."""
        self._relief.remove(relieve)

    def make_room(self) -> None:
        """Count a shortage, release the reserve, and have the users of the resource close what they can open again."""
        self.shortages += 1
        self.relieve()

    def relieve(self) -> None:
        """Do the same as ``make_room``, without counting a shortage."""
        with self._lock:
            self.release()
            for relieve in tuple(self._relief):
                relieve()


class DescriptorReserve(Reserve):
    """File descriptors in reserve: files that are open and never used."""

    def __init__(self) -> None:
        super().__init__("file descriptors")
        self._wanted = 0
        self._held: list[int] = []

    def hold(self, amount: int) -> None:
        with self._lock:
            self._wanted = amount
            while len(self._held) > amount:
                os.close(self._held.pop())

    @property
    def is_released(self) -> bool:
        return len(self._held) < self._wanted

    def release(self) -> None:
        with self._lock:
            held, self._held = self._held, []
            for fd in held:
                os.close(fd)

    def refill(self) -> bool:
        with self._lock:
            taken: list[int] = []
            lacks = self._wanted - len(self._held)
            try:
                while len(taken) < lacks + DESCRIPTORS_LEFT:
                    taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError as error:
                if reserve_for(error) is None:
                    raise
                return False
            else:
                self._held += taken[:lacks]
                del taken[:lacks]
                return True
            finally:
                for fd in taken:
                    os.close(fd)


class MemoryReserve(Reserve):
    """Memory in reserve: mapped but never written, so it takes address space but no physical memory."""

    def __init__(self) -> None:
        super().__init__("memory")
        self._wanted = 0
        self._held: mmap.mmap | None = None

    def hold(self, amount: int) -> None:
        self._wanted = amount
        self.release()

    @property
    def is_released(self) -> bool:
        return self._held is None and self._wanted > 0

    def release(self) -> None:
        with self._lock:
            held, self._held = self._held, None
            if held is not None:
                held.close()

    def refill(self) -> bool:
        with self._lock:
            lacks = 0 if self._held is not None else self._wanted
            try:
                _mapped(lacks + MEMORY_LEFT_BYTES).close()
                if lacks:
                    self._held = _mapped(lacks)
            except (OSError, MemoryError):
                return False
            return True


def _mapped(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


DESCRIPTORS: Final = DescriptorReserve()
MEMORY: Final = MemoryReserve()
RESERVES: Final[tuple[Reserve, ...]] = (DESCRIPTORS, MEMORY)


def reserve_for(error: BaseException) -> Reserve | None:
    """Return the reserve of the resource whose shortage ``error`` reports; None if it is another error."""
    if isinstance(error, MemoryError):
        return MEMORY
    if isinstance(error, OSError):
        return DESCRIPTORS if error.errno in _OF_DESCRIPTORS else MEMORY if error.errno in _OF_MEMORY else None
    return MEMORY if isinstance(error, RuntimeError) and _NO_THREAD in str(error) else None


def note_lost_work(error: BaseException) -> bool:
    """Record that ``error`` ended some work midway. Returns False, and does nothing, if it is not a shortage.

    A failed system call leaves the state as it was. Memory can run out between any two steps: after that, the state in
    memory cannot be trusted, and ``MEMORY.lost_work`` is set to the error.
    """
    reserve = reserve_for(error)
    if reserve is None:
        return False
    reserve.make_room()
    if isinstance(error, MemoryError) and reserve.lost_work is None:
        reserve.lost_work = error
    return True


def no_memory(what: str) -> KafkaError:
    """Make room after a MemoryError in work without side effects, and return the error to raise instead.

    ``what`` names the work. The error is KAFKA_STORAGE_ERROR, after which clients repeat their requests.
    """
    MEMORY.make_room()
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Not enough memory for {what}.")


def with_room(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``work(*args, **kwargs)`` and return its result. If it runs short of file descriptors or memory, make room
    and call it once more, so ``work`` must be repeatable. Raises the errors of ``work``."""
    try:
        return work(*args, **kwargs)
    except (OSError, MemoryError) as error:
        reserve = reserve_for(error)
        if reserve is None:
            raise
    reserve.make_room()
    return work(*args, **kwargs)
