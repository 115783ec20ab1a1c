"""``python -m parley ...`` without the half second of CPU time that its imports take.

A process that has imported Parley forks once for each program. The programs are processes as usual: each has its own
pid, files and memory, receives signals, and ends if the test process ends. Only the command line in /proc and the seed
of hashes are those of the process that forks. Tests of the command line, or of the start itself, start Python as users
do.

``python -m tests.support.preloaded FD`` is the process that forks. The socket FD brings requests.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Final, NamedTuple

_IMPORTED: Final = (
    *("parley.broker.server", "parley.broker.config.presets", "parley.broker.logging.lines"),
    *("parley.broker.metrics.exporter", "parley.broker.metrics.http_server", "parley.broker.security.sasl.plain"),
    *("parley.consensus.local", "parley.tools.cli.start", "cramjam", "uvloop"),
)
"""What every broker imports."""
_PR_SET_PDEATHSIG: Final = 1
_REQUEST_BYTES_MAX: Final = 1 << 17
_NUMBER_BYTES: Final = 4


class PreloadedProcess:
    """``python -m MODULE WORDS``, with a pipe for standard output. The methods are those of ``subprocess.Popen``."""

    def __init__(self, module: str, *words: str, stderr: IO[bytes]) -> None:
        self._statuses, theirs = socket.socketpair()
        reading, writing = os.pipe()
        self.stdout = io.TextIOWrapper(io.BufferedReader(io.FileIO(reading)))
        try:
            _forking().request(_Program(module, words, os.getcwd(), dict(os.environ)), writing, stderr, theirs)
        finally:
            os.close(writing)
            theirs.close()
        self.pid = self._number()
        self._returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, which is negative after a signal, or None if the process runs."""
        return self._code(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Returns the exit code. Raises ``subprocess.TimeoutExpired``."""
        code = self._code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)

    def _code(self, timeout: float | None) -> int | None:
        if self._returncode is None:
            ended = select.poll()  # select() knows no descriptors above 1023
            ended.register(self._statuses, select.POLLIN)
            if ended.poll(None if timeout is None else timeout * 1000):
                self._returncode = self._number()
                self._statuses.close()
        return self._returncode

    def _number(self) -> int:
        received = self._statuses.recv(_NUMBER_BYTES)
        assert len(received) == _NUMBER_BYTES, "the process that forks has ended"
        return int.from_bytes(received, "big", signed=True)


class _Program(NamedTuple):
    """A request to the process that forks."""

    module: str
    words: Sequence[str]
    folder: str
    environment: dict[str, str]


class _Forking:
    """The process that forks, as the test process sees it."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            command = [sys.executable, "-m", "tests.support.preloaded", str(theirs.fileno())]
            root = Path(__file__).resolve().parents[2]
            self._process = subprocess.Popen(command, cwd=root, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        atexit.register(self._end)

    def request(self, program: _Program, stdout: int, stderr: IO[bytes], statuses: socket.socket) -> None:
        descriptors = [stdout, stderr.fileno(), statuses.fileno()]
        with self._lock:
            socket.send_fds(self._requests, [json.dumps(program).encode()], descriptors)

    def _end(self) -> None:
        self._requests.close()
        self._process.wait()


_forking = functools.cache(_Forking)


def _next_program(requests: socket.socket) -> _Program:
    """Fork for each request, and report exit codes. Returns in the forked processes only."""
    running: dict[int, tuple[int, int]] = {}  # by the descriptor of a process: its pid, and the socket for its status
    waiting = select.poll()
    waiting.register(requests, select.POLLIN)
    libc = ctypes.CDLL(None)
    while True:
        for ready, _ in waiting.poll():
            if ready != requests.fileno():
                pid, statuses = running.pop(ready)
                waiting.unregister(ready)
                _, status = os.waitpid(pid, 0)
                _report(statuses, os.waitstatus_to_exitcode(status))
                os.close(statuses)
                os.close(ready)
                continue
            message, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 3)
            if not message:
                os._exit(0)  # the test process has ended; the kernel kills the others
            if (pid := os.fork()) == 0:
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                for number, descriptor in enumerate(descriptors[:2], 1):
                    os.dup2(descriptor, number)
                os.closerange(3, max([*descriptors, *running, requests.fileno()]) + 1)
                requests.detach()
                return _Program(*json.loads(message))
            stdout, stderr, statuses = descriptors
            os.close(stdout)
            os.close(stderr)
            _report(statuses, pid)
            process = os.pidfd_open(pid)
            running[process] = (pid, statuses)
            waiting.register(process, select.POLLIN)


def _report(statuses: int, number: int) -> None:
    try:
        os.write(statuses, number.to_bytes(_NUMBER_BYTES, "big", signed=True))
    except BrokenPipeError:  # the test has dropped the process
        return


def _main() -> None:
    for name in _IMPORTED:
        import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the test process, and that ends this one
    program = _next_program(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.unfreeze()
    os.chdir(program.folder)
    os.environ.clear()
    os.environ.update(program.environment)
    time.tzset()
    sys.argv = [program.module, *program.words]
    sys.path[0] = program.folder
    runpy.run_module(program.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
