"""Addresses, ``postgresql://user@host:5432,host2:5432/database?schema=parley``, with the parameters of libpq."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from parley.consensus.errors import BadConfig

DEFAULT_SCHEMA = "parley"
EXPECTED = "postgresql://[user@]host[:port][,host...]/database[?schema=parley&sslmode=...]"
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}\Z")


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address."""

    dsn: str = field(repr=False)
    """The address for asyncpg. It may contain a password, so it is never shown."""
    shown: str
    """The address for messages, without secrets."""
    schema: str
    """The schema of the tables."""
    password: str | None = field(default=None, repr=False)
    """None: asyncpg looks in ``~/.pgpass`` and ``PGPASSWORD``."""


def parse(url: str, options: Mapping[str, object]) -> Address:
    """Parse an address. The only option is ``password``.

    Raises BadConfig if the address is malformed. The message never contains what may be a password.
    """
    given_password = options.get("password")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BadConfig(f"malformed address; expected {EXPECTED}") from None
    hosts = parts.netloc.rpartition("@")[2]
    shown = f"postgresql://{hosts}{parts.path}"
    if unknown := sorted(options.keys() - {"password"}):
        raise BadConfig(f"{shown}: {', '.join(unknown)} is not a known option; expected {EXPECTED}")
    if parts.scheme != "postgresql" or not hosts or parts.path in ("", "/") or "/" in parts.path[1:]:
        raise BadConfig(f"{shown}: expected {EXPECTED}")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = given.pop("schema", DEFAULT_SCHEMA)
    if not _SCHEMA.match(schema) or schema.startswith("pg_"):
        raise BadConfig(f"{shown}: schema={schema!r} is not a name of lower case letters, digits and underscores")
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(given), ""))
    return Address(dsn, shown, schema, None if given_password is None else str(given_password))
