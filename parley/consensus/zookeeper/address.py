"""Addresses of ZooKeeper, ``zookeeper://host:port,host:port/chroot?option=value``: servers, credentials, TLS.

``_DEFAULTS`` lists the options and their defaults; docs/stores.md explains them. The passwords of key files may be
passed as separate options (``key_password``, ``ca_password``), but never in the address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from parley.configuration.key_stores import BadKeyStore, is_pem, read_identity, read_trusted
from parley.consensus.errors import BadConfig
from parley.consensus.urls import parse_servers, tls_contradiction
from parley.consensus.zookeeper.configured_address import DEFAULT_PORT
from parley.consensus.zookeeper.connection import Endpoint, Keystores
from parley.consensus.zookeeper.multi_requests import Acl
from parley.light_dataclasses import dataclass

ROOT = "parley"
_ROOT_BYTES_MAX = 200
_ALL = 31
OPEN_ACL: Acl = ((_ALL, "world", "anyone"),)
CREATOR_ACL: Acl = ((_ALL, "auth", ""),)
_FLAGS = {"true": True, "false": False}
_DEFAULTS = {
    "user": "",
    "password-file": "",
    "auth": "digest",
    "acl": "false",
    "tls": "",
    "ca-file": "",
    "cert-file": "",
    "key-file": "",
    "key-password-file": "",
    "verify-host": "true",
    "connect-timeout-ms": "18000",
}
_SECRETS = ("key-password", "ca-password")
EXPECTED = "zookeeper://host:port[,host:port...][/chroot][?user=...&password-file=...&acl=true&ca-file=...]"


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address.

    ``root`` is the path of the store's tree. ``acl`` applies to the znodes in the tree, ``parent_acl`` to those created
    above it. ``open`` waits at most ``connect_s`` for a server.
    """

    endpoint: Endpoint
    root: str
    connect_s: float
    acl: Acl = field(default=OPEN_ACL)
    parent_acl: Acl = field(default=OPEN_ACL)

    @property
    def parents(self) -> list[str]:
        """The paths that must exist before the root can be created, outermost first."""
        segments = self.root.split("/")[1:-1]
        return ["/" + "/".join(segments[: n + 1]) for n in range(len(segments))]


def parse(url: str, options: Mapping[str, object]) -> Address:
    """Parse an address and its options, and read the password files and keystores that they name. Blocks.

    Raises BadConfig if the address, an option or a file is invalid. The message contains no secret.
    """
    scheme, separator, rest = url.partition("://")
    if scheme != "zookeeper" or not separator:
        raise BadConfig(f"expected {EXPECTED}")
    place, _, query = rest.partition("?")
    given = {name.replace("_", "-"): str(value) for name, value in options.items()}
    passwords = {name: given.pop(name, "") for name in _SECRETS}
    given = dict(parse_qsl(query, keep_blank_values=True)) | given
    if unknown := sorted(given.keys() - _DEFAULTS.keys()):
        raise BadConfig(f"zookeeper: unknown option {unknown[0]}; available: {', '.join(_DEFAULTS)}")
    settings = _DEFAULTS | given
    hosts, _, chroot = place.partition("/")
    if "@" in hosts:
        raise BadConfig("a zookeeper address must not contain a password: use ?user=NAME&password-file=FILE")
    secure = _flag(settings, "acl")
    auth, sasl = _credentials(settings)
    servers = parse_servers(hosts, default_port=DEFAULT_PORT, source="zookeeper", expected=EXPECTED)
    endpoint = Endpoint(",".join(map(str, servers)), auth, sasl, *_tls(settings, passwords))
    if secure and not endpoint.has_credentials:
        raise BadConfig("zookeeper: acl=true needs credentials: user and password-file, or cert-file and key-file")
    connect_s = _milliseconds(settings, "connect-timeout-ms") / 1000
    return Address(endpoint, _root(chroot), connect_s, CREATOR_ACL if secure else OPEN_ACL)


def _root(chroot: str) -> str:
    segments = [unquote(segment) for segment in chroot.rstrip("/").split("/")] if chroot.strip("/") else []
    if any(segment in ("", ".", "..") or not segment.isprintable() or "/" in segment for segment in segments):
        raise BadConfig(f"zookeeper: /{chroot} is not a path that ZooKeeper allows")
    root = "/" + "/".join([*segments, ROOT])
    if len(root.encode()) > _ROOT_BYTES_MAX:
        raise BadConfig(f"zookeeper: the chroot is too long; {_ROOT_BYTES_MAX - len(ROOT) - 2} bytes are allowed")
    return root


def _credentials(settings: Mapping[str, str]) -> tuple[tuple[tuple[str, str], ...], dict[str, str] | None]:
    user, file, how = settings["user"], settings["password-file"], settings["auth"]
    if how not in ("digest", "sasl"):
        raise BadConfig(f"zookeeper: auth={how}: expected digest or sasl")
    if not user and not file:
        return (), None
    if not user or not file or ":" in user:
        raise BadConfig("zookeeper: user (without a colon) and password-file must be used together")
    password = _secret(file, "password-file")
    if how == "digest":
        return (("digest", f"{user}:{password}"),), None
    return (), {"mechanism": "DIGEST-MD5", "username": user, "password": password}


def _tls(settings: Mapping[str, str], passwords: Mapping[str, str]) -> tuple[dict[str, Any], Keystores]:
    files = [name for name in ("ca-file", "cert-file", "key-file") if settings[name]]
    if not (_flag(settings, "tls") if settings["tls"] else files):
        if files:
            raise tls_contradiction("zookeeper", files)
        return {}, Keystores()
    try:
        return _stores(settings, passwords)
    except BadKeyStore as error:
        raise BadConfig(f"zookeeper: {error}") from error


def _stores(settings: Mapping[str, str], passwords: Mapping[str, str]) -> tuple[dict[str, Any], Keystores]:
    tls: dict[str, Any] = {"use_ssl": True, "check_hostname": _flag(settings, "verify-host")}
    trusted, own = "", None
    if authorities := settings["ca-file"]:
        if is_pem(_file(authorities, "ca-file")):
            tls["ca"] = authorities
        else:
            trusted = read_trusted(authorities, passwords["ca-password"])
    password = passwords["key-password"]
    if settings["key-password-file"]:
        password = _secret(settings["key-password-file"], "key-password-file")
    if (certificate := settings["cert-file"]) and not is_pem(_file(certificate, "cert-file")):
        if settings["key-file"] not in ("", certificate):
            raise BadConfig(f"zookeeper: the key is in cert-file={certificate}; key-file names another file")
        own = read_identity(certificate, password)
    elif bool(certificate) != bool(settings["key-file"]):
        raise BadConfig("zookeeper: cert-file and key-file must be used together")
    elif certificate:
        tls["certfile"] = certificate
        tls["keyfile"] = _file(settings["key-file"], "key-file")
        tls |= {"keyfile_password": password} if password else {}
    return tls, Keystores(own, trusted)


def _secret(path: str, option: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"zookeeper: {option}={path} cannot be read: {type(error).__name__}") from error


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
        raise BadConfig(f"zookeeper: {option}={text}: expected a whole number of milliseconds from 1 to 2147483647")
    return int(text)
