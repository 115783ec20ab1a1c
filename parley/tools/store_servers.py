"""Run a real server of a coordination store on this machine, to try Parley: a single node with its data in a folder.

1. The server listens on 127.0.0.1 only. It has a separate process group, so that Ctrl-C in a terminal reaches the
   brokers first. It never outlives this process, however this process ends.
2. It is ready when it responds as a leader, not when its port is open.
3. Only one server at a time uses a folder. The next server uses the data in the folder again, even at another port.
4. With a lock (store_locks.py) clients need TLS and an account. Without a lock, every user of the machine has access.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from parley.tools.ending_with_parent import ending_with_parent
from parley.tools.store_locks import (
    PREFIX,
    Lock,
    consul_settings,
    etcd_arguments,
    lock_consul,
    lock_etcd,
    zookeeper_settings,
)

START_SECONDS: Final = 60
STOP_SECONDS: Final = 20
ASK_SECONDS: Final = 2
_GRPC_TLS_SINCE: Final = (1, 14)
"""The first release of Consul with an additional gRPC port, and with a setting for it that older releases reject."""
_INITIAL_MANAGEMENT_SINCE: Final = (1, 11)
"""The first release of Consul that uses the new name of the setting for the master token."""
_ZOOKEEPER_OPEN: Final = """\
clientPort={port}
clientPortAddress=127.0.0.1
"""
_JARS: Final = Path("/usr/share/java")
_CACHE: Final = Path(__file__).resolve().parents[2] / ".cache"
_ZOOKEEPER: Final = """\
tickTime=2000
dataDir={folder}/data
admin.enableServer=false
autopurge.purgeInterval=24
4lw.commands.whitelist=srvr,wchs
"""


class StoreServerError(Exception):
    """Raised if the server is not installed, does not start, or already runs. The text explains what to do."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The command that starts a server, and a function that returns True once the server is ready. Until then, the
    function returns False, or raises OSError or ValueError."""

    command: list[str]
    is_ready: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of store server.

    ``launch`` takes a folder, free ports (the first is for clients), and the lock, if any. ``lock`` takes the lock and
    the port of a ready server, and creates the accounts in it.
    """

    usual_port: int
    launch: Callable[[Path, list[int], Lock | None], Launch]
    lock: Callable[[Lock, int], None]


def zookeeper_class_path() -> str:
    """Return the class path of ZooKeeper's server: ``PARLEY_ZOOKEEPER``, or Debian's. Raises StoreServerError if there
    is none."""
    if named := os.environ.get("PARLEY_ZOOKEEPER"):
        return named
    if not (_JARS / "zookeeper.jar").exists() or shutil.which("java") is None:
        raise StoreServerError("no ZooKeeper found: run `make peers`, or set PARLEY_ZOOKEEPER to a class path")
    return ":".join(str(_JARS / name) for name in ("zookeeper.jar", "netty-codec.jar", "slf4j-simple.jar"))


def etcd_program() -> str:
    """Return the etcd executable: ``PARLEY_ETCD``, or the one on the path. Raises StoreServerError if there is none."""
    found = os.environ.get("PARLEY_ETCD") or shutil.which("etcd")
    if found is None:
        raise StoreServerError("no etcd found: run `make peers`, or set PARLEY_ETCD to its executable")
    return found


def consul_program() -> str:
    """Return the Consul executable: ``PARLEY_CONSUL``, the one that ``make peers`` fetched, or the one on the path.

    Raises StoreServerError if there is none.
    """
    fetched = next(_CACHE.glob("consul-*/usr/bin/consul"), None)
    found = os.environ.get("PARLEY_CONSUL") or fetched or shutil.which("consul")
    if found is None:
        raise StoreServerError("no Consul found: run `make peers`, or set PARLEY_CONSUL to its executable")
    return str(found)


def consul_ports_off() -> dict[str, int]:
    """Return the settings of Consul that close the ports not needed here. Their numbers are fixed, so they would
    conflict if two servers ran.

    Raises StoreServerError if Consul is not installed or does not run.
    """
    closed = {"serf_wan": -1, "dns": -1, "grpc": -1}
    if _consul_version() >= _GRPC_TLS_SINCE:
        closed["grpc_tls"] = -1
    return closed


@cache
def _consul_version() -> tuple[int, int]:
    try:
        version_run = subprocess.run(
            [consul_program(), "version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise StoreServerError(f"Consul cannot be run: {error}") from error
    version = re.match(r"Consul v(\d+)\.(\d+)", version_run.stdout)
    return (0, 0) if version is None else (int(version[1]), int(version[2]))


def _zookeeper(folder: Path, ports: list[int], lock: Lock | None) -> Launch:
    config = folder / "zookeeper.cfg"
    clients = _ZOOKEEPER_OPEN.format(port=ports[0]) if lock is None else zookeeper_settings(lock, ports[0])
    config.write_text(_ZOOKEEPER.format(folder=folder) + clients)
    java = ["java", "-Xms16m", "-Xmx256m", "-Dzookeeper.jmx.log4j.disable=true"]
    java += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", zookeeper_class_path()]

    def is_ready() -> bool:
        with ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", ports[0]), ASK_SECONDS))
            if lock is not None:
                tls = lock.tls_context()
                connection = stack.enter_context(tls.wrap_socket(connection, server_hostname="127.0.0.1"))
            connection.sendall(b"srvr")
            return b"Mode:" in connection.makefile("rb").read()

    return Launch([*java, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)], is_ready)


def _etcd(folder: Path, ports: list[int], lock: Lock | None) -> Launch:
    scheme = "http" if lock is None else "https"
    clients, peers = (f"{scheme}://127.0.0.1:{port}" for port in ports[:2])
    command = [
        etcd_program(),
        "--name=parley",
        f"--data-dir={folder}/data",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=parley={peers}",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        "--logger=zap",
        "--log-level=warn",
        *([] if lock is None else etcd_arguments(lock)),
    ]
    return Launch(command, lambda: b'"true"' in _get(ports[0], "/health", lock))


def _consul(folder: Path, ports: list[int], lock: Lock | None) -> Launch:
    config = folder / "consul.json"
    http, rpc, serf = ports[:3]
    management = "initial_management" if _consul_version() >= _INITIAL_MANAGEMENT_SINCE else "master"
    closed = consul_ports_off()
    settings = {
        "server": True,
        "bootstrap_expect": 1,
        "node_name": "parley",
        "data_dir": f"{folder}/data",
        "bind_addr": "127.0.0.1",
        "client_addr": "127.0.0.1",
        "ports": {
            **({"http": http} if lock is None else {"http": -1, "https": http}),
            "server": rpc,
            "serf_lan": serf,
            **closed,
        },
        "performance": {"raft_multiplier": 1},
        "disable_update_check": True,
        **({} if lock is None else consul_settings(lock, names_management_token=management)),
    }
    config.touch()
    config.chmod(0o600)  # it may contain the tokens of a lock
    config.write_text(json.dumps(settings, indent=1) + "\n")
    command = [consul_program(), "agent", f"-config-file={config}", "-log-level=warn"]
    # Sessions can be created once the node is in the catalog.
    return Launch(command, lambda: b'"parley"' in _get(http, "/v1/catalog/node/parley?consistent", lock))


def _get(port: int, path: str, lock: Lock | None) -> bytes:
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if lock is not None:
        handlers.append(urllib.request.HTTPSHandler(context=lock.tls_context()))
        request.full_url = f"https://127.0.0.1:{port}{path}"
        request.add_header("X-Consul-Token", lock.root_password)
    with urllib.request.build_opener(*handlers).open(request, timeout=ASK_SECONDS) as response:
        body: bytes = response.read()
        return body


KINDS: Final = {
    "zookeeper": Kind(2181, _zookeeper, lambda lock, port: None),  # the brokers set the ACLs of what they create
    "etcd": Kind(2379, _etcd, lock_etcd),
    "consul": Kind(8500, _consul, lock_consul),
}
"""The stores that have servers, by URL scheme."""


@contextmanager
def store_server(name: str, folder: Path, *, usual_port: bool = False, lock: Lock | None = None) -> Iterator[str]:
    """Run a server of the store ``name`` (a key of ``KINDS``) inside the context. Yields its URL, which refers to the
    files of ``lock``.

    ``folder`` is created if necessary. It holds the configuration, the data and ``server.log``. With ``usual_port`` the
    server uses the store's default port if that is free.

    Raises StoreServerError if the server is not installed, does not start, cannot be locked, or already runs in this
    folder.
    """
    kind = KINDS[name]
    folder = folder.absolute()
    (folder / "data").mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as stack:
        _lock(stack, folder)
        ports = _free_ports(kind.usual_port if usual_port else 0)
        launch = kind.launch(folder, ports, lock)
        log = stack.enter_context((folder / "server.log").open("ab"))
        process = subprocess.Popen(
            ending_with_parent(launch.command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
        )
        stack.callback(_stop, process)
        _wait_until_ready(name, process, launch, folder / "server.log")
        url = f"{name}://127.0.0.1:{ports[0]}/{PREFIX}"
        if lock is None:
            yield url
            return
        try:
            kind.lock(lock, ports[0])
        except OSError as error:
            raise StoreServerError(f"cannot lock the server of {name}: {error}") from error
        yield f"{url}?{lock.query(name)}"


def _lock(stack: ExitStack, folder: Path) -> None:
    lock = stack.enter_context((folder / ".lock").open("w"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise StoreServerError(f"a server already runs in {folder}: stop it first") from error


def _free_ports(first: int) -> list[int]:
    """Return three free ports. The first is ``first`` if that port is free."""
    with ExitStack() as stack:
        ports = []
        for wanted in (first, 0, 0):
            try:
                listener = socket.create_server(("127.0.0.1", wanted))
            except OSError:
                listener = socket.create_server(("127.0.0.1", 0))
            ports.append(stack.enter_context(listener).getsockname()[1])
        return ports


def _wait_until_ready(name: str, process: subprocess.Popen[bytes], launch: Launch, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if launch.is_ready():
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.05)
    what = "does not respond" if process.poll() is None else f"ended with code {process.returncode}"
    last = log.read_text(errors="replace")[-2000:].strip()
    raise StoreServerError(f"the server of {name} {what}; the end of {log}:\n{last}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
