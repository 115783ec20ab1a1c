"""Addresses of Consul: the agents, the prefix in the KV store, the ACL token and the certificates."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl

from parley.consensus.errors import BadConfig
from parley.consensus.keys import check_key
from parley.consensus.urls import parse_servers, split_url, tls_contradiction
from parley.light_dataclasses import dataclass

DEFAULT_PREFIX = "parley"
DEFAULT_PORT = 8500
DEFAULT_TLS_PORT = 8501
PREFIX_BYTES_MAX = 100
_FORM = "consul://host:port[,host:port...][/prefix][?option=value]"


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address.

    ``endpoints`` are the HTTP addresses of agents, ``http://host:port``; the client uses any of them. ``ttl_ms_min`` is
    the agents' ``session_ttl_min``. The token file is read at each ``open``. The other files are PEM. Without a
    ``ca_file``, the client trusts the operating system's certificate authorities.
    """

    endpoints: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX
    ttl_ms_min: int = 10_000
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @classmethod
    def parse(cls, url: str, options: Mapping[str, object]) -> Address:
        """Parse a URL. ``options`` replace the options in its query; their names may contain ``_`` instead of ``-``.

        Raises BadConfig if the URL or an option is invalid. The message contains nothing that may be a secret.
        """
        shown = url.partition("?")[0]
        try:
            parts = split_url(url)
            query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        except ValueError as error:
            raise BadConfig(f"{shown!r}: expected {_FORM}") from error
        if parts.scheme != "consul" or "@" in parts.servers or parts.fragment:
            raise BadConfig(
                f"{shown.rpartition('@')[2]!r}: expected {_FORM}; a token goes into a file: ?token-file=FILE"
            )
        given = query | {name.replace("_", "-"): str(value) for name, value in options.items()}
        if unknown := sorted(given.keys() - _OPTIONS):
            raise BadConfig(f"{shown!r}: unknown option {unknown[0]!r}; available: {', '.join(sorted(_OPTIONS))}")
        if empty := [name for name, value in given.items() if not value]:
            raise BadConfig(f"{shown!r}: the option {empty[0]} is empty")
        if ("cert-file" in given) != ("key-file" in given):
            raise BadConfig(f"{shown!r}: cert-file and key-file must be used together")
        tls = _tls(shown, given)
        default_port = DEFAULT_TLS_PORT if tls else DEFAULT_PORT
        servers = parse_servers(parts.servers, default_port=default_port, source=repr(shown), expected=_FORM)
        return cls(
            endpoints=tuple(f"{'https' if tls else 'http'}://{server}" for server in servers),
            prefix=_prefix(shown, parts.path),
            ttl_ms_min=_ttl_min(shown, given.get("session-ttl-min-ms", "10000")),
            token_file=given.get("token-file"),
            ca_file=given.get("ca-file"),
            cert_file=given.get("cert-file"),
            key_file=given.get("key-file"),
        )

    def read_token(self) -> str | None:
        """Return the ACL token, or None if the address names no token file. Blocks.

        Raises BadConfig if the file cannot be read or contains no token.
        """
        if self.token_file is None:
            return None
        try:
            token = Path(self.token_file).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadConfig(f"token-file {self.token_file} cannot be read: {type(error).__name__}") from error
        if not token or not token.isprintable():
            raise BadConfig(f"token-file {self.token_file} contains no token")
        return token

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None for plain HTTP. Blocks. Raises BadConfig if a certificate or key is
        unusable."""
        if not self.endpoints[0].startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # accept what Python before 3.13 accepted
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (self.ca_file, self.cert_file, self.key_file)))
            raise BadConfig(f"the certificates ({files}) cannot be used: {error}") from error
        return context


_OPTIONS = frozenset({"tls", "ca-file", "cert-file", "key-file", "token-file", "session-ttl-min-ms"})


def _prefix(shown: str, path: str) -> str:
    prefix = path.strip("/") or DEFAULT_PREFIX
    try:
        check_key(prefix)
    except ValueError as error:
        raise BadConfig(f"{shown!r}: the prefix {error}") from error
    if len(prefix) > PREFIX_BYTES_MAX:
        raise BadConfig(f"{shown!r}: the prefix is longer than {PREFIX_BYTES_MAX} characters")
    return prefix


def _tls(shown: str, given: Mapping[str, str]) -> bool:
    files = [name for name in ("ca-file", "cert-file", "key-file") if name in given]
    match given.get("tls", str(bool(files))).lower():
        case "true":
            return True
        case "false" if not files:
            return False
        case "false":
            raise tls_contradiction(repr(shown), files)
        case _:
            raise BadConfig(f"{shown!r}: tls must be true or false")


def _ttl_min(shown: str, text: str) -> int:
    if not text.isdecimal() or not 100 <= int(text) <= 30_000:
        raise BadConfig(f"{shown!r}: session-ttl-min-ms must be the agents' session_ttl_min, 100 to 30000 milliseconds")
    return int(text)
