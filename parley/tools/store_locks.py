"""Lock the server of a store so that only the brokers' account may use it: TLS, users or ACLs, URL options.

The steps are those of docs/stores.md, performed over the servers' HTTP APIs. They can be repeated: a server that is
already locked stays as it is.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

USER: Final = "parley"
PREFIX: Final = "parley"
"""The path of the store's URL. The account may read and write only keys below it."""
_SECONDS: Final = 10
_RULES: Final = f'key_prefix "{PREFIX}/" {{ policy = "write" }} session_prefix "" {{ policy = "write" }}'


@dataclass(frozen=True, slots=True)
class Lock:
    """The files with which a store's server is locked.

    ``certificate`` contains the server's certificate and key; ``authority`` is the certificate that signed it.
    ``password_file`` contains the password of the brokers' account (in Consul its token), and ``root_file`` that of the
    administrator account that creates it.
    """

    authority: Path
    certificate: Path
    password_file: Path
    root_file: Path

    @property
    def password(self) -> str:
        """The password (in Consul the token) of the brokers' account."""
        return self.password_file.read_text().strip()

    @property
    def root_password(self) -> str:
        """The password (in Consul the token) of the administrator account."""
        return self.root_file.read_text().strip()

    def tls_context(self) -> ssl.SSLContext:
        """Return a TLS context that trusts only the server's authority."""
        return ssl.create_default_context(cafile=str(self.authority))

    def query(self, store: str) -> str:
        """Return the options of the store's URL with which the brokers log in over TLS, as a query without the question
        mark. ``store`` is the URL's scheme."""
        if store == "consul":
            return urlencode({"ca-file": self.authority, "token-file": self.password_file}, safe="/")
        options = {"ca-file": self.authority, "user": USER, "password-file": self.password_file}
        return urlencode({"acl": "true", **options} if store == "zookeeper" else options, safe="/")


# --- Settings of the servers ---


def zookeeper_settings(lock: Lock, port: int) -> str:
    """Return lines of ZooKeeper's configuration that require TLS from clients. The brokers set the ACLs of
    the znodes."""
    return f"""\
secureClientPort={port}
secureClientPortAddress=127.0.0.1
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.clientAuth=none
ssl.keyStore.location={lock.certificate}
ssl.trustStore.location={lock.authority}
"""


def etcd_arguments(lock: Lock) -> list[str]:
    """Return arguments of etcd that require TLS from clients, and mutual TLS between servers."""
    files = {
        "cert-file": lock.certificate,
        "key-file": lock.certificate,
        "peer-cert-file": lock.certificate,
        "peer-key-file": lock.certificate,
        "peer-trusted-ca-file": lock.authority,
    }
    return [*(f"--{name}={path}" for name, path in files.items()), "--peer-client-cert-auth"]


def consul_settings(lock: Lock, *, names_management_token: str) -> dict[str, Any]:
    """Return settings of Consul that enable HTTPS, and ACLs that deny everything that no token allows.

    ``names_management_token`` is the setting's name, in this release of Consul, for the token that may do everything.
    """
    tokens = {names_management_token: lock.root_password, "agent": lock.root_password}
    return {
        "acl": {"enabled": True, "default_policy": "deny", "tokens": tokens},
        "ca_file": str(lock.authority),
        "cert_file": str(lock.certificate),
        "key_file": str(lock.certificate),
    }


# --- Accounts ---


def lock_etcd(lock: Lock, port: int) -> None:
    """Create the brokers' user in etcd, which may use only the prefix, and reject clients without a user. Does nothing
    if etcd is already locked. Raises OSError if the server does not respond or rejects a request."""

    def ask(path: str, body: object) -> None:
        _send(lock, "POST", f"https://127.0.0.1:{port}/v3/auth/{path}", body)

    try:
        ask("authenticate", {"name": "root", "password": lock.root_password})
        return
    except urllib.error.HTTPError as refusal:
        if "not enabled" not in _text(refusal):
            raise
    first, last = (base64.b64encode(f"/{PREFIX}{end}".encode()).decode() for end in ("/", "0"))
    permission = {"permType": "READWRITE", "key": first, "range_end": last}  # "0" follows "/": the prefix, and no more
    steps: list[tuple[str, object]] = [
        ("user/add", {"name": "root", "password": lock.root_password}),
        ("role/add", {"name": "root"}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("user/add", {"name": USER, "password": lock.password}),
        ("role/add", {"name": USER}),
        ("role/grant", {"name": USER, "perm": permission}),
        ("user/grant", {"user": USER, "role": USER}),
        ("enable", {}),
    ]
    for path, body in steps:
        try:
            ask(path, body)
        except urllib.error.HTTPError as refusal:
            if "already" not in _text(refusal):  # an interrupted start has created it
                raise


def lock_consul(lock: Lock, port: int) -> None:
    """Create the brokers' ACL token in Consul. Its policy grants access to the prefix and to sessions only. Does
    nothing if the token exists.

    Raises OSError if the server does not respond or rejects a request.
    """
    url = f"https://127.0.0.1:{port}/v1/acl"
    try:
        _send(lock, "GET", f"{url}/token/self", token=lock.password)
        return
    except urllib.error.HTTPError as refusal:
        if "not found" not in _text(refusal):
            raise
    try:
        _send(lock, "PUT", f"{url}/policy", {"Name": USER, "Rules": _RULES}, token=lock.root_password)
    except urllib.error.HTTPError as refusal:
        if "already exists" not in _text(refusal):
            raise
    token = {"SecretID": lock.password, "Description": "Parley's brokers", "Policies": [{"Name": USER}]}
    _send(lock, "PUT", f"{url}/token", token, token=lock.root_password)


def _send(lock: Lock, method: str, url: str, body: object = None, *, token: str = "") -> None:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"X-Consul-Token": token} if token else {}, method=method)
    direct = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=lock.tls_context())
    )
    with direct.open(request, timeout=_SECONDS) as response:
        response.read()


def _text(refusal: urllib.error.HTTPError) -> str:
    text: str = refusal.read().decode("utf-8", "replace")
    return text
