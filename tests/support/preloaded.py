"""``python -m parley ...`` without the half second of CPU time that its imports take, and Spark's Python workers
without their second: PySpark's modules, which Spark passes in a zip file, are compiled by each worker.

A process that has imported what they need forks once for each program. The programs are processes as usual: each has
its own pid, files and memory, receives signals, and ends if the test process ends. Only the command line in /proc and
the seed of hashes are those of the process that forks. Tests of the command line, or of the start itself, start Python
as users do.

``python -m tests.support.preloaded FD MODULES`` is the process that forks. It accepts connections at the socket FD, and
ends with its standard input. Each connection brings a program and its streams, and receives the pid and the exit code.
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
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Final, NamedTuple

_PARLEY: Final = (
    *("parley.broker.server", "parley.broker.config.presets", "parley.broker.logging.lines"),
    *("parley.broker.metrics.exporter", "parley.broker.metrics.http_server", "parley.broker.metrics.metrics_page"),
    "parley.broker.security.sasl.plain",
    *("parley.consensus.local", "parley.tools.cli.start", "cramjam", "uvloop"),
    *("parley.tools.cli.topics", "parley.tools.cli.librdkafka", "rich.table"),
)
"""What every broker, and most commands, import."""
_CONNECT: Final = ("parley.pipeline.connect.run_worker", "parley.tools.cli.connect")
"""What a Connect worker imports: four times as much as a broker."""
_SPARK: Final = (
    *("pyspark.worker", "pyspark.sql.worker.commit_data_source_write", "pyspark.sql.worker.create_data_source"),
    *("pyspark.sql.worker.data_source_pushdown_filters", "pyspark.sql.worker.lookup_data_sources"),
    *("pyspark.sql.worker.plan_data_source_read", "pyspark.sql.worker.python_streaming_sink_runner"),
    *("pyspark.sql.worker.write_into_data_source", "pyspark_parley"),
    *("confluent_kafka.schema_registry", "cramjam", "fastavro", "pandas"),
)
"""What Spark's Python workers import for our format."""
_PR_SET_PDEATHSIG: Final = 1
_REQUEST_BYTES_MAX: Final = 1 << 17
_NUMBER_BYTES: Final = 4
_ROOT: Final = Path(__file__).resolve().parents[2]


class PreloadedProcess:
    """``python -m MODULE WORDS``, with a pipe for standard output. The methods are those of ``subprocess.Popen``."""

    def __init__(self, module: str, *words: str, stderr: IO[bytes]) -> None:
        self._connection = _forking(_PARLEY).connect()
        reading, writing = os.pipe()
        self.stdout = io.TextIOWrapper(io.BufferedReader(io.FileIO(reading)))
        os.umask(umask := os.umask(0))
        program = [module, words, os.getcwd(), umask, dict(os.environ)]
        with open(os.devnull) as nothing:
            streams = [nothing.fileno(), writing, stderr.fileno()]
            socket.send_fds(self._connection, [json.dumps(program).encode()], streams)
        os.close(writing)
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
            ended.register(self._connection, select.POLLIN)
            if ended.poll(None if timeout is None else timeout * 1000):
                self._returncode = self._number()
                self._connection.close()
        return self._returncode

    def _number(self) -> int:
        received = self._connection.recv(_NUMBER_BYTES)
        assert len(received) == _NUMBER_BYTES, "the process that forks has ended"
        return int.from_bytes(received, "big", signed=True)


def preloaded_command(*words: str) -> list[str]:
    """Return the command line of a small process that starts ``parley WORDS`` and ends with it. It passes SIGINT and
    SIGTERM on. If it is killed, so is the command."""
    modules = _CONNECT if words[:1] == ("connect",) else _PARLEY
    return [str(_forking(modules).program("parley", "-m", "parley")), *words]


def preloaded_path() -> str:
    """Return a PATH for shells on which ``parley`` forks from the preloaded process, too. Other commands are those of
    this environment, and those of the machine."""
    folder = str(_forking(_PARLEY).program("parley", "-m", "parley").parent)
    return os.pathsep.join([folder, str(Path(sys.executable).parent), os.environ["PATH"]])


def preloaded_spark_python() -> str:
    """Return the path of a ``python`` for Spark, whose workers fork from a process that has imported what they need.

    Any other program, such as ``python -c``, is this environment's Python.
    """
    return str(_forking(_SPARK).program("python"))


class _Forking:
    """The process that forks, as the test process sees it."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="parley-preloaded-"))
        self._address = str(self._folder / "socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self._address)
            listener.listen()
            fd = listener.fileno()
            command = [sys.executable, "-m", "tests.support.preloaded", str(fd), *modules]
            self._process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, pass_fds=[fd])
        atexit.register(self._end)

    def program(self, name: str, *words: str) -> Path:
        """Return a program that forks for ``python WORDS`` and its own arguments."""
        program = self._folder / name
        if not program.exists():
            client = Path(__file__).with_name("preloaded_command.py")
            command = shlex.join([sys.executable, "-I", "-S", str(client), self._address, *words])
            program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            program.chmod(0o755)
        return program

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(self._address)
        return connection

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self._folder)


_forking = functools.cache(_Forking)


class _Program(NamedTuple):
    """What a forked process runs."""

    module: str
    words: list[str]
    folder: str
    umask: int
    environment: dict[str, str]

    def run(self) -> None:
        os.umask(self.umask)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        time.tzset()
        sys.argv = [self.module, *self.words]
        sys.path[0] = self.folder
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
        runpy.run_module(self.module, run_name="__main__", alter_sys=True)


class _Forks:
    """Forks for each connection, and reports the exit codes."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._running: dict[int, tuple[int, socket.socket]] = {}
        """The pid and the connection of each process, by the descriptor of the process."""
        self._connected: dict[int, int] = {}
        """The pid of each process, by the descriptor of its connection."""
        self._waiting = select.poll()
        self._waiting.register(sys.stdin, select.POLLIN)
        self._waiting.register(listener, select.POLLIN)
        self._libc = ctypes.CDLL(None)

    def next_program(self) -> _Program:
        """Wait for programs. Returns in the forked processes only."""
        while True:
            for ready, _ in self._waiting.poll():
                if ready == sys.stdin.fileno():
                    os._exit(0)  # the test process has ended; the kernel kills the others
                if ready in self._running:
                    self._report(ready)
                elif ready in self._connected:  # the process at its other end has ended
                    self._waiting.unregister(ready)
                    os.kill(self._connected.pop(ready), signal.SIGKILL)
                elif ready == self._listener.fileno() and (program := self._fork()) is not None:
                    return program

    def _fork(self) -> _Program | None:
        connection, _ = self._listener.accept()
        message, streams, _, _ = socket.recv_fds(connection, _REQUEST_BYTES_MAX, 3)
        if (pid := os.fork()) == 0:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            for each in (self._listener, connection, *(of_another for _, of_another in self._running.values())):
                os.close(each.detach())
            for descriptor in (*streams, *self._running):
                os.close(descriptor)
            return _Program(*json.loads(message))
        for stream in streams:
            os.close(stream)
        process = os.pidfd_open(pid)
        self._running[process] = (pid, connection)
        self._connected[connection.fileno()] = pid
        self._waiting.register(process, select.POLLIN)
        self._waiting.register(connection, select.POLLHUP)
        _send(connection, pid)
        return None

    def _report(self, process: int) -> None:
        pid, connection = self._running.pop(process)
        self._waiting.unregister(process)
        if self._connected.pop(connection.fileno(), None) is not None:
            self._waiting.unregister(connection)
        os.close(process)
        _, status = os.waitpid(pid, 0)
        with connection:
            _send(connection, os.waitstatus_to_exitcode(status))


def _send(connection: socket.socket, number: int) -> None:
    with suppress(BrokenPipeError):  # the test has dropped the process
        connection.send(number.to_bytes(_NUMBER_BYTES, "big", signed=True))


def _main() -> None:
    for name in sys.argv[2:]:
        import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the test process, and that ends this one
    forks = _Forks(socket.socket(fileno=int(sys.argv[1])))
    program = forks.next_program()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program.run()


if __name__ == "__main__":
    _main()
