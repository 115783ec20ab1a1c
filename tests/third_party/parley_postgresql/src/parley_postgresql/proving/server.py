"""A real PostgreSQL server on a free port, with its own data and a wall clock that can be moved.

Its programs are those in the directory that ``PARLEY_POSTGRESQL`` names, else those on the path, else the newest below
``/usr/lib/postgresql`` (Debian). PostgreSQL refuses to run as root; it then runs as ``postgres`` or ``nobody``.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from parley.consensus.conformance.processes import WallClock

START_SECONDS = 60
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "unix_socket_directories": "",
}


def programs() -> Path:
    """Return the directory with PostgreSQL's programs. Raises RuntimeError, with advice, if there is none."""
    named = os.environ.get("PARLEY_POSTGRESQL")
    on_path = shutil.which("postgres")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: _version(path.parts[-3]))
    candidates = (
        [Path(named)] if named else [Path(on_path).resolve().parent] if on_path else [path.parent for path in debian]
    )
    if not candidates or not (candidates[-1] / "initdb").exists():
        raise RuntimeError(
            "this needs a real PostgreSQL: run `make peers`, or `apt-get install postgresql`, or name the directory of "
            "its programs in PARLEY_POSTGRESQL"
        )
    return candidates[-1]


def _version(text: str) -> float:
    return float(text) if text.replace(".", "", 1).isdigit() else 0.0


class PostgresqlServer:
    """A PostgreSQL server whose files are in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._data, self._initial = directory / "data", directory / "initial"
        self._programs = programs()
        self._user = next((name for name in ("postgres", "nobody") if _exists(name)), "nobody")
        self._process: subprocess.Popen[bytes] | None = None
        self.clock = WallClock(directory)
        self._environment = {**os.environ, **self.clock.environment, "LC_ALL": "C"}
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port: int = listener.getsockname()[1]
        self._hand_over()

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"postgresql://parley@127.0.0.1:{self.port}/postgres?sslmode=disable"

    def start(self) -> None:
        """Start the server and wait until it responds. The first start creates the data."""
        if not self._initial.exists():
            self._run(
                "initdb", f"--pgdata={self._initial}", "--username=parley", "--auth=trust", "--no-sync", "-E", "UTF8"
            )
        if not self._data.exists():
            shutil.copytree(self._initial, self._data, symlinks=True)
            self._own(self._data)
        settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self.port), *settings]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._directory, stdout=log, stderr=log, env=self._environment, **self._identity()
            )
        self._wait()

    def stop(self) -> None:
        """Stop the server at once, like a crash: only its write-ahead log has what it has confirmed."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Stop the server, and start it with its data."""
        self.stop()
        self.start()

    def wipe(self) -> None:
        """Stop the server, delete its data, and start it empty."""
        self.stop()
        shutil.rmtree(self._data)
        self.start()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        ready = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            if subprocess.run(ready, check=False).returncode == 0:
                return
            time.sleep(0.02)
        log = (self._directory / "log").read_text(errors="replace")
        raise RuntimeError(f"PostgreSQL did not start:\n{log[-3000:]}")

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(
            command, cwd=self._directory, capture_output=True, text=True, check=False, timeout=120, **self._identity()
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")

    def _identity(self) -> dict[str, Any]:
        """Return the user to run as: PostgreSQL refuses to run as root."""
        if os.geteuid() != 0:
            return {}
        entry = pwd.getpwnam(self._user)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": ()}

    def _hand_over(self) -> None:
        """Give the server's user the directory, and a copy of the library that moves its clock."""
        library = self._directory / "clock.so"
        shutil.copyfile(self.clock.environment["LD_PRELOAD"], library)
        library.chmod(0o755)
        self._environment["LD_PRELOAD"] = str(library)
        self._own(self._directory)

    def _own(self, path: Path) -> None:
        if os.geteuid() == 0:
            user = pwd.getpwnam(self._user)
            for each in (path, *path.rglob("*")):
                os.chown(each, user.pw_uid, user.pw_gid, follow_symlinks=False)


def _exists(user: str) -> bool:
    return user in _users()


def _users() -> Sequence[str]:
    return [entry.pw_name for entry in pwd.getpwall()]


@contextmanager
def running() -> Iterator[PostgresqlServer]:
    """Run a server inside the context, in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="parley-postgresql-") as name:
        server = PostgresqlServer(Path(name))
        try:
            server.start()
            yield server
        finally:
            server.stop()
