"""A PostgreSQL server from Debian's package, with its own data, for the duration of a ``with`` block."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_port

START_SECONDS = 60
_SETTINGS = ("listen_addresses=127.0.0.1", "shared_buffers=16MB", "unix_socket_directories=", "fsync=off")


def programs() -> Path:
    """Return the folder of PostgreSQL's programs. Raises RuntimeError, which says how to install them."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    on_path = shutil.which("postgres")
    if found or on_path:
        return (found[-1] if found else Path(str(on_path)).resolve()).parent
    raise RuntimeError("this needs PostgreSQL: run `make peers`, or `apt-get install postgresql`")


@contextmanager
def postgresql() -> Iterator[str]:
    """Run a server with an empty database. Yields its URL, in the form that connectors accept.

    Its data is outside pytest's folders, because each pytest run makes those inaccessible to other users.
    """
    with tempfile.TemporaryDirectory(prefix="parley-postgresql-") as name:
        user = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        if user is not None:
            shutil.chown(name, user)
        with _serving(Path(name), user) as url:
            yield url


@contextmanager
def _serving(folder: Path, user: str | None) -> Iterator[str]:
    data = folder / "data"
    binaries = programs()
    port = free_port()
    make = [f"{binaries}/initdb", "-D", str(data), "-U", "parley", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"]
    subprocess.run(make, check=True, capture_output=True, user=user, cwd="/", timeout=START_SECONDS)
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    with (folder / "log").open("wb") as log:
        command = [f"{binaries}/postgres", "-D", str(data), "-p", str(port), *settings]
        server = subprocess.Popen(command, stdout=log, stderr=log, user=user, cwd="/")
    try:
        ready = [f"{binaries}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port), "-t", "1"]
        while subprocess.run(ready, check=False).returncode:
            if server.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start: {(folder / 'log').read_text()}")
        yield f"jdbc:postgresql://127.0.0.1:{port}/postgres?user=parley"
    finally:
        server.send_signal(signal.SIGQUIT)
        server.wait(START_SECONDS)
