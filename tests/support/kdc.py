"""MIT's Kerberos KDC on the loopback address, with a realm that exists as long as its folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from parley.tools.ending_with_parent import ending_with_parent
from tests.support.ports import free_port

REALM: Final = "PARLEY.TEST"
START_SECONDS: Final = 60
_PROGRAMS: Final = Path("/usr/sbin")

_CLIENTS = """\
[libdefaults]
default_realm = {realm}
dns_lookup_kdc = false
dns_lookup_realm = false
dns_canonicalize_hostname = false
rdns = false
udp_preference_limit = 1
default_ccache_name = FILE:{folder}/default.ccache
[realms]
{realm} = {{
  kdc = 127.0.0.1:{port}
}}
OTHER.TEST = {{
  kdc = 127.0.0.1:{port}
}}
"""
_SERVER = """\
[kdcdefaults]
kdc_listen = 127.0.0.1:{port}
kdc_tcp_listen = 127.0.0.1:{port}
[realms]
{realm} = {{
  database_name = {folder}/principals
  key_stash_file = {folder}/stash
  max_life = 1h
  supported_enctypes = aes256-cts-hmac-sha1-96:normal aes128-cts-hmac-sha1-96:normal
}}
[logging]
kdc = FILE:{folder}/kdc.log
"""


class Kdc:
    """A running KDC. ``environment`` contains the variables for programs that use it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.krb5_conf = self._write("krb5.conf", _CLIENTS)
        profile = self._write("kdc.conf", _SERVER)
        self.environment = {
            "KRB5_CONFIG": str(self.krb5_conf),
            "JAVA_TOOL_OPTIONS": f"-Djava.security.krb5.conf={self.krb5_conf}",
        }
        self._own = {**os.environ, **self.environment, "KRB5_KDC_PROFILE": str(profile)}
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        command = [str(_PROGRAMS / "krb5kdc"), "-n", "-r", REALM, "-P", str(folder / "pid")]
        self._process = subprocess.Popen(
            ending_with_parent(command, signal.SIGKILL), env=self._own,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._wait_until_ready()

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text.format(folder=self.folder, port=self.port, realm=REALM))
        return path

    def _run(self, program: str, *words: str) -> None:
        command = [str(_PROGRAMS / program), *words]
        done = subprocess.run(command, env=self._own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}{done.stdout}"

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError:
                assert self._process.poll() is None, (self.folder / "kdc.log").read_text()
                assert time.monotonic() < deadline, "the KDC does not listen"
                time.sleep(0.02)
            else:
                return

    def add(self, *principals: str) -> None:
        """Add principals with random keys."""
        for each in principals:
            self._administrate(f"addprinc -randkey {each}")

    def keytab(self, principal: str, *, renew: bool = False) -> str:
        """Create new keys for a principal and add them to its keytab. Returns its path. Old keys remain unless
        ``renew``."""
        path = self.folder / f"{principal.replace('/', '-')}.keytab"
        if renew:
            path.unlink()
        self._administrate(f"ktadd -k {path} {principal}")
        return str(path)

    def _administrate(self, query: str) -> None:
        self._run("kadmin.local", "-r", REALM, "-q", query)

    def kinit(self, principal: str, keytab: str) -> str:
        """Get a ticket as users do. Returns the path of its cache."""
        path = self.folder / f"{principal}.ccache"
        command = ["kinit", "-k", "-t", keytab, "-c", str(path), principal]
        subprocess.run(command, env=self._own, check=True, capture_output=True)
        return str(path)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def running_kdc(folder: Path) -> Iterator[Kdc]:
    """Run a KDC that this process and its child processes use inside the context."""
    kdc = Kdc(folder)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in kdc.environment.items():
            patch.setenv(name, value)
        try:
            yield kdc
        finally:
            kdc.close()


def krb5_line(options: Mapping[str, str]) -> str:
    """Return a JAAS entry for Java's Kerberos login module."""
    words = "".join(f' {name}="{value}"' for name, value in options.items())
    return f"com.sun.security.auth.module.Krb5LoginModule required{words};"


def keytab_line(principal: str, keytab: str) -> str:
    """Return the JAAS entry of a program that has a keytab."""
    return krb5_line({"useKeyTab": "true", "storeKey": "true", "keyTab": keytab, "principal": principal})
