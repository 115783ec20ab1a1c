"""Addresses of etcd, ``etcd://host:port,host:port/prefix?option=value``: servers, prefix, credentials, TLS."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from parley.consensus.errors import BadConfig
from parley.consensus.keys import check_key
from parley.consensus.urls import parse_servers, split_url, tls_contradiction
from parley.light_dataclasses import dataclass

DEFAULT_PORT = 2379
DEFAULT_PREFIX = "/parley"
PREFIX_BYTES_MAX = 200
EXPECTED = (
    "etcd://host:port[,host:port...][/prefix][?user=...&password-file=...&ca-file=...&cert-file=...&key-file=...]"
)
_HASHED = re.compile(r"[0-9a-f]{8}\.[0-9]+", re.ASCII)
"""The file names that OpenSSL reads in a folder of authorities."""
_OPTIONS = ("user", "password-file", "tls", "ca-file", "cert-file", "key-file")


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address.

    ``endpoints`` contains the ``host:port`` of each server. All keys begin with ``prefix``, which starts with a slash
    but does not end with one. ``tls`` is also True if any of the TLS files is given. Without a ``ca_file``, the client
    trusts the operating system's certificate authorities.
    """

    endpoints: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX
    user: str | None = None
    password_file: Path | None = None
    tls: bool = False
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Secrets:
    """The contents of the files that an address names."""

    password: str = field(default="", repr=False)
    ca: bytes | None = field(default=None, repr=False)
    cert: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)


def parse(url: str, options: Mapping[str, object]) -> Address:
    """Parse an address. ``options`` replace the options in the address; their names may contain ``_`` instead of ``-``.

    Raises BadConfig if the address or an option is invalid. The message never contains anything that may be a password.
    """
    scheme, _, rest = url.partition("://")
    authority, given = rest.partition("/")[0].partition("?")[0], _given(url, options)
    if "@" in authority:
        raise BadConfig("an etcd address must not contain a password: use ?user=NAME&password-file=FILE")
    if scheme != "etcd" or not authority:
        raise BadConfig(f"{url!r}: expected {EXPECTED}")
    files = {name: Path(value) for name, value in given.items() if name.endswith("-file")}
    if ("user" in given) != ("password-file" in files):
        raise BadConfig(f"{url!r}: user and password-file must be used together")
    if ("cert-file" in files) != ("key-file" in files):
        raise BadConfig(f"{url!r}: cert-file and key-file must be used together")
    servers = parse_servers(authority, default_port=DEFAULT_PORT, source=repr(url), expected=EXPECTED)
    return Address(
        endpoints=tuple(map(str, servers)),
        prefix=_prefix(unquote(split_url(url).path), url),
        user=given.get("user"),
        password_file=files.get("password-file"),
        tls=_tls(given, files, url),
        ca_file=files.get("ca-file"),
        cert_file=files.get("cert-file"),
        key_file=files.get("key-file"),
    )


def read_secrets(address: Address) -> Secrets:
    """Read the files that an address names, or the authorities of the operating system. Blocks. Raises BadConfig if one
    cannot be read, or if there are no authorities."""

    def read(path: Path | None) -> bytes | None:
        try:
            return path.read_bytes() if path is not None else None
        except OSError as error:
            raise BadConfig(f"cannot read a file that coordination.url names: {error}") from error

    password = (read(address.password_file) or b"").decode("utf-8", "replace").rstrip("\r\n")
    ca = _system_authorities() if address.tls and address.ca_file is None else read(address.ca_file)
    return Secrets(password, ca, read(address.cert_file), read(address.key_file))


def _system_authorities() -> bytes:
    """Return the authorities of the operating system, as PEM. gRPC by itself would trust a list of its own."""
    context, folder = ssl.create_default_context(), ssl.get_default_verify_paths().capath
    for path in Path(folder).iterdir() if folder else ():  # OpenSSL reads these only when it needs them
        if _HASHED.fullmatch(path.name):
            with suppress(OSError):  # as in OpenSSL, an unusable file is ignored
                context.load_verify_locations(path)
    found = context.get_ca_certs(binary_form=True)
    if not found:
        raise BadConfig(
            "an etcd address uses TLS without ca-file, but the operating system has no certificate authorities: "
            "install them (usually the package ca-certificates), or add ca-file"
        )
    return "".join(map(ssl.DER_cert_to_PEM_cert, found)).encode()


def _given(url: str, options: Mapping[str, object]) -> dict[str, str]:
    given = dict(parse_qsl(split_url(url).query, keep_blank_values=True))
    given |= {name.replace("_", "-"): str(value) for name, value in options.items()}
    for name, value in given.items():
        if name not in _OPTIONS:
            raise BadConfig(f"unknown etcd option {name!r}; available: {', '.join(_OPTIONS)}")
        if not value:
            raise BadConfig(f"the option {name} of an etcd address is empty")
    return given


def _tls(given: Mapping[str, str], files: Mapping[str, Path], url: str) -> bool:
    for_tls = [name for name in ("ca-file", "cert-file", "key-file") if name in files]
    flag = given.get("tls")
    if flag not in (None, "true", "false"):
        raise BadConfig(f"{url!r}: tls must be true or false")
    if flag == "false" and for_tls:
        raise tls_contradiction(repr(url), for_tls)
    return bool(for_tls) or flag == "true"


def _prefix(path: str, url: str) -> str:
    prefix = path.rstrip("/") or DEFAULT_PREFIX
    try:
        check_key(prefix.removeprefix("/"))
    except ValueError as error:
        raise BadConfig(f"{url!r}: the prefix {error}") from error
    if len(prefix) > PREFIX_BYTES_MAX:
        raise BadConfig(f"{url!r}: the prefix has {len(prefix)} bytes; at most {PREFIX_BYTES_MAX} are allowed")
    return prefix
