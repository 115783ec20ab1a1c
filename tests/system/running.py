"""A broker in a separate process, as users start it: ``parley start``."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, ClassVar

from parley.tools.ending_with_parent import ending_with_parent
from tests.support.ports import free_port
from tests.support.preloaded import PreloadedProcess

START_SECONDS = 60
STOP_SECONDS = 60


class BrokerDied(AssertionError):
    """The broker ended, or did not start. The text is its output."""


class BrokerProcess:
    """A broker on a data folder. It can be stopped or killed, and restarted at the same address."""

    preloaded: ClassVar[bool] = True
    """False if ``command`` returns more than a start of Python: the broker is then started by that command line."""

    def __init__(self, folder: Path, overrides: Mapping[str, str] | None = None, *, port: int | None = None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = free_port() if port is None else port
        self.bootstrap_servers = f"127.0.0.1:{self.port}"
        self.metrics_url = ""
        self.summary: list[str] = []
        self.overrides = {
            "listeners": f"PLAINTEXT://{self.bootstrap_servers}",
            "log.dirs": str(self.data),
            "metrics.listener": "127.0.0.1:0",
            **(overrides or {}),
        }
        self.log_path = folder / "broker.log"
        self.program = ["parley"]
        """The module to start instead of ``parley``, and its first arguments."""
        self._process: subprocess.Popen[str] | PreloadedProcess | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        """Return the command line that starts the broker."""
        return [sys.executable, "-m", *self.words()]

    def words(self) -> list[str]:
        """Return the module that is the broker, and its arguments."""
        settings = [word for key, value in self.overrides.items() for word in ("--override", f"{key}={value}")]
        return [*self.program, "start", *settings]

    def start(self) -> None:
        """Start the broker, and wait until it serves clients. Raises ``BrokerDied``."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start the broker without waiting."""
        assert not self.alive
        with self.log_path.open("ab") as log:
            self._process = PreloadedProcess(*self.words(), stderr=log) if self.preloaded else self._by_command(log)

    def _by_command(self, log: IO[bytes]) -> subprocess.Popen[str]:
        # The broker must not outlive a test run that was killed.
        command = ending_with_parent(self.command(), signal.SIGKILL)
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)

    def wait_until_ready(self) -> None:
        """Wait until the broker serves clients. Raises ``BrokerDied``."""
        assert self._process is not None
        assert self._process.stdout is not None
        self.summary = []
        for line in self._process.stdout:
            self.summary.append(line.rstrip("\n"))
            if found := re.search(r"metrics\s+(\S+)", line):
                self.metrics_url = found[1]
            if "bootstrap.servers=" in line:
                return
        code = self._process.wait(STOP_SECONDS)
        raise BrokerDied(f"no broker, exit code {code}\n{self.log()}")

    def stop(self) -> int:
        """Ask the broker to stop, and wait for it. Returns its exit code."""
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        """Wait until the broker ends by itself. Returns its exit code."""
        assert self._process is not None, "the broker is not running"
        return self._process.wait(STOP_SECONDS)

    def kill(self) -> int:
        """End the broker like a crash. Returns its exit code."""
        return self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop the process with SIGSTOP. Its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process continue after ``freeze``."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: int) -> int:
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            self._process = None
            assert process.stdout is not None
            process.stdout.close()

    def log(self, start: int = 0) -> str:
        """Return the broker's log from byte ``start`` on, or an empty text before its first start."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace")

    def log_size(self) -> int:
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def resident_bytes(self) -> int:
        """Return the resident memory of the broker's process."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
