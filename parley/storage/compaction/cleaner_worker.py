"""The workers that compact logs: a separate process at low priority, or the calling thread.

Rules:

1. The process starts with the first compaction. It can be killed at any moment: it writes only ``.cleaned`` files, and
   the broker puts them in place. It ends when the broker ends for any reason: a thread reads the broker's messages, and
   exits when the pipe is closed.
2. It yields to the broker: its priority for CPU and disk is low, and the kernel kills it first if memory runs out.
3. Messages are pickled. Only these two processes have the pipes, so the messages are trusted.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, Final, Protocol

from parley.light_dataclasses import dataclass
from parley.storage.compaction.compactor import CompactedGroup, CompactionRequest, CompactionResult, compact

NICE: Final = 10
"""The niceness of the process. If the broker competes for the same core, the process gets a tenth of the broker's CPU
time. Linux derives the disk priority from it."""
OOM_SCORE: Final = 500
"""The number added to the score by which Linux chooses a process to kill when memory runs out
(``/proc/*/oom_score_adj``, at most 1000)."""
ENDING_S: Final = 1.0
"""How long a process whose pipes are closed may take to exit by itself."""
PAUSE_MIN_S: Final = 0.01
"""The minimum pause. Shorter pauses are accumulated, because each pause costs a wake-up."""
TELL_S: Final = 1.0
"""The interval at which the process reports how much it has read."""

Adopt = Callable[[CompactedGroup], None]


class WorkerEnded(Exception):
    """Raised if the worker was stopped, or its process has ended. Another worker can compact the log."""


class WorkerNotStarted(Exception):
    """Raised if the worker's process cannot be started. The log is not the cause."""


class Worker(Protocol):
    """Compacts one log at a time."""

    @property
    def done_bytes(self) -> int:
        """The bytes that the compaction in progress has read so far, in both passes: at most
        ``CompactionRequest.bytes_to_read``."""
        ...

    def compact(self, request: CompactionRequest, adopt: Adopt, bytes_per_second: float) -> CompactionResult:
        """Compact as ``compactor.compact`` does, reading and writing at most ``bytes_per_second`` in total. Blocks.

        ``adopt`` is called in the calling thread. No file is written after this returns or raises. Also raises
        ``WorkerEnded``, after which this worker cannot be used again, and ``WorkerNotStarted``.
        """
        ...

    def stop(self) -> None:
        """Stop this worker permanently: the compaction in progress and every later one raise ``WorkerEnded``.

        Any thread may call this. Idempotent.
        """
        ...

    def close(self) -> None:
        """Stop, and release all resources. Blocks until the worker has ended. Must not be called during a
        compaction."""
        ...


class Pace:
    """Limits reading and writing to a rate. ``wait`` is called with the seconds to pause."""

    def __init__(
        self, bytes_per_second: float, wait: Callable[[float], object], monotonic: Callable[[], float]
    ) -> None:
        self._rate = bytes_per_second
        self._wait = wait
        self._monotonic = monotonic
        self._due_s = monotonic()

    def __call__(self, size: int) -> None:
        """Count ``size`` bytes, and pause if the rate is exceeded."""
        now = self._monotonic()
        self._due_s = max(self._due_s, now) + size / self._rate
        if self._due_s - now > PAUSE_MIN_S:
            self._wait(self._due_s - now)


class ThreadWorker:
    """Compacts in the calling thread: for a broker that shares its process with another program."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.done_bytes = 0
        self._monotonic = monotonic
        self._stopped = threading.Event()

    def compact(self, request: CompactionRequest, adopt: Adopt, bytes_per_second: float) -> CompactionResult:
        """Compact in this thread. A stop takes effect at the next read or write."""
        self._note_read(0)
        pace = Pace(bytes_per_second, self._stopped.wait, self._monotonic)

        def throttle(size: int) -> None:
            pace(size)
            if self._stopped.is_set():
                raise WorkerEnded("the compaction was stopped")

        throttle(0)
        return compact(request, adopt, throttle=throttle, report_progress=self._note_read)

    def _note_read(self, size: int) -> None:
        self.done_bytes = size

    def stop(self) -> None:
        """Make the next read or write of the compaction raise ``WorkerEnded``."""
        self._stopped.set()

    def close(self) -> None:
        """Do the same as ``stop``: there is nothing to release."""
        self.stop()


@dataclass(frozen=True, slots=True)
class _Job:
    """A message to the process: compact this log."""

    request: CompactionRequest
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class _Adopted:
    """A message to the process: the log has adopted the group of segments that the process wrote."""


@dataclass(frozen=True, slots=True)
class _HasRead:
    """A message from the process: the number of bytes that the compaction has read so far."""

    size: int


@dataclass(frozen=True, slots=True)
class _Failed:
    """A message from the process: the compaction failed with this exception."""

    error: Exception


class ProcessWorker:
    """Compacts in a separate process."""

    def __init__(self) -> None:
        self.done_bytes = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    @property
    def pid(self) -> int | None:
        """The id of the process; None if it has not been started."""
        return None if self._process is None else self._process.pid

    def compact(self, request: CompactionRequest, adopt: Adopt, bytes_per_second: float) -> CompactionResult:
        """Compact in the process, which is started first if necessary. Any failure of ``adopt`` or of the process ends
        the process; an exception of the compaction itself does not."""
        process = self._started()
        self.done_bytes = 0
        ended = True
        try:
            _send(process, _Job(request, bytes_per_second))
            while isinstance(message := _received(process), CompactedGroup | _HasRead):
                if isinstance(message, _HasRead):
                    self.done_bytes = message.size
                else:
                    adopt(message)
                    _send(process, _Adopted())
            ended = False
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_S)
            self.close()
            raise WorkerEnded(f"the worker process exited with code {process.returncode}") from error
        finally:
            if ended:
                self.close()
        if isinstance(message, _Failed):
            raise message.error
        assert isinstance(message, CompactionResult)
        return message

    def stop(self) -> None:
        """Kill the process, and never start another."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Kill the process, wait for it to exit, and close its pipes."""
        self.stop()
        if (process := self._process) is not None:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(BrokenPipeError):
                    pipe.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None and not self._stopped:
            command = [sys.executable, "-c", "from parley.storage.compaction.cleaner_worker import main; main()"]
            try:
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            except OSError as error:
                raise WorkerNotStarted(f"the worker process cannot be started: {error}") from error
        if self._stopped:
            self.close()
            raise WorkerEnded("the worker process was stopped")
        assert self._process is not None
        return self._process


def _send(process: subprocess.Popen[bytes], message: object) -> None:
    assert process.stdin is not None
    pickle.dump(message, process.stdin)
    process.stdin.flush()


def _received(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout is not None
    return pickle.load(process.stdout)


# --- In the worker process ---


def _serve(messages: BinaryIO, results: BinaryIO) -> None:
    """Run one job after another until the broker ends."""
    received: SimpleQueue[Any] = SimpleQueue()

    def receive() -> None:
        with suppress(BaseException):
            while True:
                received.put(pickle.load(messages))
        os._exit(0)

    def send(message: object) -> None:
        try:
            results.write(pickle.dumps(message))
            results.flush()
        except BrokenPipeError:  # the broker was killed, which the other thread may notice later
            os._exit(0)

    def adopt(group: CompactedGroup) -> None:
        send(group)
        received.get()

    threading.Thread(target=receive, daemon=True).start()
    while True:
        job = received.get()
        pace = Pace(job.bytes_per_second, time.sleep, time.monotonic)
        try:
            outcome: object = compact(job.request, adopt, throttle=pace, report_progress=_Telling(send))
        except Exception as error:
            outcome = _Failed(_portable(error))
        send(outcome)


class _Telling:
    """Reports to the broker how much a compaction has read, at most once every ``TELL_S`` seconds."""

    def __init__(self, send: Callable[[object], None]) -> None:
        self._send = send
        self._told_s = time.monotonic()

    def __call__(self, done_bytes: int) -> None:
        if time.monotonic() - self._told_s >= TELL_S:
            self._told_s = time.monotonic()
            self._send(_HasRead(done_bytes))


def _portable(error: Exception) -> Exception:
    """Return the exception if it can be pickled and unpickled, otherwise a ``RuntimeError`` with its text. Some
    exceptions can be pickled but not unpickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(repr(error))
    return error


def _yield_to_others() -> None:
    os.nice(NICE)
    score = Path("/proc/self/oom_score_adj")
    with suppress(OSError):  # without a /proc file system
        score.write_text(str(min(1000, int(score.read_text()) + OOM_SCORE)))


def main() -> None:
    """Run the worker process: read the broker's messages from standard input, and write the replies to
    standard output."""
    for ignored in (signal.SIGINT, signal.SIGTERM):  # this process exits when the broker ends
        signal.signal(ignored, signal.SIG_IGN)
    _yield_to_others()
    messages, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print must not look like a message
    _serve(messages, results)
