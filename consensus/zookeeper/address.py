"""From an address and options to where ZooKeeper is and who we are to it.

``zookeeper://[user:password@]host[:2181][,host[:2181]...][/chroot][?option=value&...]``. The options, which can also be
given beside the address (and should be where they are secret), are named as Kafka's, without ``zookeeper.``:

``connection.timeout.ms``
    how long ``open`` waits for a server; 18000.
``session.timeout.ms``
    timeout of the connection for reads and writes; 6000. Sessions have TTLs of their own.
``set.acl``
    ``true``: what is created can be read and changed with these credentials only.
``auth``
    ``digest:user:password``; the same as a user in the address.
``sasl.username``, ``sasl.password``
    authenticate by SASL (DIGEST-MD5).
``ssl.client.enable``
    ``true``: TLS.
``ssl.truststore.location``
    the certificates to trust (PEM); without it those of the system.
``ssl.keystore.location``, ``ssl.keystore.password``
    our own certificate and its key (PEM, in one file), and the key's password.
``ssl.endpoint.identification.algorithm``
    ``HTTPS``: the server's certificate must be made for its name; empty: that is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from consensus.errors import BadConfig
from consensus.zookeeper.connection import Endpoint
from consensus.zookeeper.wire import Acl

ROOT = "parley"
_ROOT_BYTES_MAX = 200
_ALL = 31
OPEN_ACL: Acl = ((_ALL, "world", "anyone"),)
CREATOR_ACL: Acl = ((_ALL, "auth", ""),)
_FLAGS = {"true": True, "false": False}
_DEFAULTS = {
    "connection.timeout.ms": "18000",
    "session.timeout.ms": "6000",
    "set.acl": "false",
    "auth": "",
    "sasl.username": "",
    "sasl.password": "",
    "ssl.client.enable": "false",
    "ssl.truststore.location": "",
    "ssl.keystore.location": "",
    "ssl.keystore.password": "",
    "ssl.endpoint.identification.algorithm": "HTTPS",
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a store is.

    :ivar root: the path of our tree.
    :ivar parents: the paths above it, outermost first.
    :ivar acl: for what is created in the tree. ``parent_acl``: for what is created above it.
    :ivar connect_s: how long ``open`` waits for a server, in seconds.
    :ivar timeout_ms: the timeout of the connection for reads and writes.
    """

    endpoint: Endpoint
    root: str
    connect_s: float
    timeout_ms: int
    acl: Acl = field(default=OPEN_ACL)
    parent_acl: Acl = field(default=OPEN_ACL)

    @property
    def parents(self) -> list[str]:
        """What must be there before the root can be made."""
        segments = self.root.split("/")[1:-1]
        return ["/" + "/".join(segments[: n + 1]) for n in range(len(segments))]


def parse(url: str, options: Mapping[str, object]) -> Address:
    """The address that a URL and options mean.

    :raises BadConfig: they make no sense; the message repeats no secret.
    """
    scheme, separator, rest = url.partition("://")
    if scheme != "zookeeper" or not separator:
        raise BadConfig("expected zookeeper://host:port[,host:port...][/chroot]")
    place, _, query = rest.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True)) | {name: str(value) for name, value in options.items()}
    if unknown := sorted(given.keys() - _DEFAULTS.keys()):
        raise BadConfig(f"zookeeper: no option is called {unknown[0]}; there are {', '.join(_DEFAULTS)}")
    settings = _DEFAULTS | given
    authority, _, chroot = place.partition("/")
    user, at, hosts = authority.rpartition("@")
    auth = f"digest:{unquote(user)}" if at else settings["auth"]
    root = _root(chroot)
    secure = _flag(settings, "set.acl")
    endpoint = Endpoint(_hosts(hosts), _auth(auth), _sasl(settings), _tls(settings))
    if secure and not (endpoint.auth or endpoint.sasl or endpoint.tls.get("certfile")):
        raise BadConfig("zookeeper: set.acl=true needs credentials: auth, sasl.username or ssl.keystore.location")
    connect_s = _milliseconds(settings, "connection.timeout.ms") / 1000
    acl = CREATOR_ACL if secure else OPEN_ACL
    return Address(endpoint, root, connect_s, _milliseconds(settings, "session.timeout.ms"), acl)


def _hosts(text: str) -> str:
    hosts = []
    for each in text.split(","):
        host, colon, port = each.rpartition(":")
        if not colon or each.endswith("]"):
            host, port = each, "2181"
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise BadConfig(f"zookeeper: {each!r} is not host:port; expected zookeeper://host:port[,host:port...]")
        hosts.append(f"{host}:{port}")
    return ",".join(hosts)


def _root(chroot: str) -> str:
    segments = [unquote(segment) for segment in chroot.rstrip("/").split("/")] if chroot.strip("/") else []
    if any(segment in ("", ".", "..") or not segment.isprintable() or "/" in segment for segment in segments):
        raise BadConfig(f"zookeeper: /{chroot} is not a path that ZooKeeper allows")
    root = "/" + "/".join([*segments, ROOT])
    if len(root.encode()) > _ROOT_BYTES_MAX:
        raise BadConfig(f"zookeeper: the chroot is too long; {_ROOT_BYTES_MAX - len(ROOT) - 2} bytes are allowed")
    return root


def _auth(text: str) -> tuple[tuple[str, str], ...]:
    if not text:
        return ()
    scheme, _, credential = text.partition(":")
    user, colon, _ = credential.partition(":")
    if scheme != "digest" or not user or not colon:
        raise BadConfig("zookeeper: the credentials are not digest:user:password")
    return ((scheme, credential),)


def _sasl(settings: Mapping[str, str]) -> dict[str, str] | None:
    username, password = settings["sasl.username"], settings["sasl.password"]
    if not username and not password:
        return None
    if not username or not password:
        raise BadConfig("zookeeper: sasl.username and sasl.password belong together")
    return {"mechanism": "DIGEST-MD5", "username": username, "password": password}


def _tls(settings: Mapping[str, str]) -> dict[str, Any]:
    if not _flag(settings, "ssl.client.enable"):
        if settings["ssl.keystore.location"] or settings["ssl.truststore.location"]:
            raise BadConfig("zookeeper: certificates are given, but ssl.client.enable is not true")
        return {}
    tls: dict[str, Any] = {"use_ssl": True}
    tls["check_hostname"] = _identification(settings["ssl.endpoint.identification.algorithm"])
    if trusted := settings["ssl.truststore.location"]:
        tls["ca"] = _file(trusted, "ssl.truststore.location")
    if own := settings["ssl.keystore.location"]:
        tls["certfile"] = tls["keyfile"] = _file(own, "ssl.keystore.location")
        tls["keyfile_password"] = settings["ssl.keystore.password"] or None
    return tls


def _identification(algorithm: str) -> bool:
    if algorithm.upper() not in ("HTTPS", ""):
        raise BadConfig(f"zookeeper: ssl.endpoint.identification.algorithm={algorithm}: expected HTTPS or nothing")
    return bool(algorithm)


def _file(path: str, option: str) -> str:
    if not Path(path).is_file():
        raise BadConfig(f"zookeeper: {option}={path}: there is no such file")
    return path


def _flag(settings: Mapping[str, str], option: str) -> bool:
    if (value := settings[option].strip().lower()) not in _FLAGS:
        raise BadConfig(f"zookeeper: {option}={settings[option]}: expected true or false")
    return _FLAGS[value]


def _milliseconds(settings: Mapping[str, str], option: str) -> int:
    text = settings[option]
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise BadConfig(f"zookeeper: {option}={text}: expected milliseconds")
    return int(text)
