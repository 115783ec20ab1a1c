"""A PostgreSQL server of Debian's package, with data of its own, for as long as a ``with`` block."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_port

START_SECONDS = 60
_SETTINGS = ("listen_addresses=127.0.0.1", "shared_buffers=16MB", "unix_socket_directories=", "fsync=off")


def programs() -> Path:
    """The folder of PostgreSQL's programs. Raises RuntimeError which says how to get them."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    on_path = shutil.which("postgres")
    if found or on_path:
        return (found[-1] if found else Path(str(on_path)).resolve()).parent
    raise RuntimeError("this needs PostgreSQL: run `make peers`, or `apt-get install postgresql`")


@contextmanager
def postgresql(folder: Path) -> Iterator[str]:
    """The URL of a server with an empty database, as connectors take it."""
    data, user = folder / "data", "nobody" if os.geteuid() == 0 else None  # it does not run as root
    data.mkdir(parents=True)
    if user is not None:
        shutil.chown(data, user)
        for above in (folder, *folder.parents):
            if above.owner() == "root" and above != Path("/") and above != Path("/tmp"):
                above.chmod(above.stat().st_mode | 0o011)
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
