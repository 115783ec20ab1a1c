"""The public keys of a token issuer (JWKS): from a file, which is read again when it changes, or from an https address.

The first login starts to fetch keys from an address, in a thread. They are fetched again when they are older than
``sasl.oauthbearer.jwks.endpoint.refresh.ms``, even without logins, because keys may be withdrawn. They are also fetched
when a token names an unknown key, but at most once per ``UNKNOWN_KEY_S``, so that clients cannot make the broker flood
the issuer. If the issuer does not respond, the broker keeps the old keys.

A login whose key is known never waits for a fetch, as in Kafka, so an issuer that is slow or unreachable does not keep
its users out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit
from urllib.request import Request

from parley.broker.config import ConfigError, Problem
from parley.broker.security.sasl.mechanism import MechanismSetup
from parley.configuration.key_stores import BadKeyStore
from parley.configuration.tls import tls_settings
from parley.protocol.security.http_requests import fetch

_log = logging.getLogger(__name__)

UNKNOWN_KEY_S: Final = 10.0
"""The minimum time, in seconds, between two fetches because of unknown keys."""
_REFRESH_MIN_S: Final = 1.0
"""The minimum time, in seconds, after which keys are fetched again without a login."""
_KEYS_MAX: Final = 1000
_URL_KEY: Final = "sasl.oauthbearer.jwks.endpoint.url"
_TIMEOUT_MS: Final = 10_000

Jwk = Mapping[str, Any]


class IssuerKeys(Protocol):
    """The currently known keys of an issuer."""

    def renew(self, key_id: str | None) -> Awaitable[None] | None:
        """Start to read or fetch the keys again if they may have changed.

        Returns an awaitable, which a login must await before it calls ``find``, or None if the login need not wait. The
        awaitable does not raise.
        """

    def find(self, key_id: str | None) -> Sequence[Jwk]:
        """Return the keys with this id, or all keys if the token does not name a key."""

    def close(self) -> None:
        """Stop the periodic fetches of the keys. A login can still cause a fetch."""


def _parsed(text: bytes) -> list[Jwk]:
    """Return the keys of a JWKS document. Raises ValueError if it is malformed."""
    found = json.loads(text)
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list) or not all(isinstance(key, dict) for key in keys):
        raise ValueError("not a JSON Web Key Set (JWKS)")
    return keys[:_KEYS_MAX]


def _with_id(keys: Sequence[Jwk], key_id: str | None) -> Sequence[Jwk]:
    return keys if key_id is None else [key for key in keys if key.get("kid") == key_id]


class KeyFile:
    """An issuer's keys, which are read from a file."""

    def __init__(self, path: Path) -> None:
        """Read the keys. Raises OSError or ValueError if the file cannot be used."""
        self._path = path
        self._keys: Sequence[Jwk] = ()
        self._seen: tuple[int, int] | None = None
        self._read()

    def _read(self) -> None:
        found = os.stat(self._path)
        if (found.st_mtime_ns, found.st_size) != self._seen:
            self._keys = _parsed(self._path.read_bytes())
            self._seen = found.st_mtime_ns, found.st_size

    def find(self, key_id: str | None) -> Sequence[Jwk]:
        return _with_id(self._keys, key_id)

    def close(self) -> None:
        """Do nothing: only logins read the file."""

    async def renew(self, key_id: str | None) -> None:
        try:
            await asyncio.to_thread(self._read)
        except (OSError, ValueError) as error:
            _log.error("the keys that verify tokens cannot be read", extra=_facts(str(self._path), error))


class FetchedKeys:
    """An issuer's keys, which are fetched from an https address."""

    def __init__(
        self,
        url: str,
        fetch: Callable[[], bytes],
        *,
        refresh_s: float,
        backoff_s: float,
        backoff_max_s: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``fetch`` blocks for a limited time, and raises OSError or HTTPException if the keys cannot be fetched.

        Keys are fetched again after ``refresh_s`` seconds. After a failed fetch, a login causes another one only after
        ``backoff_s`` seconds, and twice as many after each further failure, up to ``backoff_max_s``.
        """
        self._url = url
        self._fetch = fetch
        self._refresh_s = refresh_s
        self._backoff_s = self._first_backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._clock = clock
        self._keys: Sequence[Jwk] = ()
        self._due_at = -float("inf")
        self._unknown_at = -float("inf")
        self._renewal: asyncio.Future[None] | None = None
        """The fetch in progress."""
        self._next: asyncio.TimerHandle | None = None
        """The next fetch, if no login causes one before."""
        self._is_closed = False

    def renew(self, key_id: str | None) -> Awaitable[None] | None:
        now = self._clock()
        is_known = bool(self.find(key_id))
        if self._renewal is None and (now >= self._due_at or (not is_known and now >= self._unknown_at)):
            self._unknown_at = now + UNKNOWN_KEY_S
            self._begin()
        if self._renewal is None or is_known:
            return None
        return asyncio.shield(self._renewal)  # other logins wait for it, too

    def find(self, key_id: str | None) -> Sequence[Jwk]:
        return _with_id(self._keys, key_id)

    def close(self) -> None:
        self._is_closed = True
        if self._next is not None:
            self._next.cancel()

    def _begin(self) -> None:
        """Fetch the keys in a daemon thread. A pool's thread would delay the end of the process until the issuer has
        responded."""
        if self._next is not None:
            self._next.cancel()
        loop = asyncio.get_running_loop()
        thread = Thread(target=self._get, args=(loop,), name="issuer keys", daemon=True)
        self._renewal = loop.create_future()
        try:
            thread.start()
        except RuntimeError as error:  # the limit of threads
            self._settle(error)

    def _get(self, loop: asyncio.AbstractEventLoop) -> None:
        outcome: Sequence[Jwk] | Exception
        try:
            outcome = _parsed(self._fetch())
        except Exception as error:
            outcome = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._settle, outcome)

    def _settle(self, outcome: Sequence[Jwk] | Exception) -> None:
        if isinstance(outcome, Exception):
            _log.error("the keys that verify tokens cannot be fetched", extra=_facts(self._url, outcome))
            self._due_at = self._unknown_at = self._clock() + self._backoff_s
            self._backoff_s = min(2 * self._backoff_s, self._backoff_max_s)
        else:
            self._keys = outcome
            self._due_at = self._clock() + self._refresh_s
            self._backoff_s = self._first_backoff_s
        if not self._is_closed:
            self._next = asyncio.get_running_loop().call_later(max(self._refresh_s, _REFRESH_MIN_S), self._begin)
        if self._renewal is not None:
            self._renewal.set_result(None)
            self._renewal = None


def _facts(url: str, error: Exception) -> dict[str, str]:
    return {"url": url, "reason": str(error) or type(error).__name__}


# --- From the configuration ---


def issuer_keys(setup: MechanismSetup) -> IssuerKeys:
    """Return the keys that ``sasl.oauthbearer.jwks.endpoint.url`` names. Blocks, because it may read the keys, or the
    certificates for the address, from files. Raises ConfigError if the address, the file or the TLS settings for the
    address cannot be used."""
    config = setup.config
    url = (config.sasl_oauthbearer_jwks_endpoint_url or "").strip()
    parts = urlsplit(url)
    try:
        if parts.scheme == "file":
            return KeyFile(Path(unquote(parts.path)))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it is not an https:// (or http://) URL with a host, nor a file:/// URL")
        context = _context(setup.options) if parts.scheme == "https" else None
    except (OSError, ValueError) as error:
        raise ConfigError(
            [Problem(_URL_KEY, url, f"the address of usable keys, but this one cannot be used: {error}")]
        ) from error
    if parts.scheme == "http":
        _log.warning(
            "the keys that verify tokens are fetched without TLS: use https, otherwise attackers can forge tokens"
        )
    timeout_ms = config.sasl_login_read_timeout_ms or config.sasl_login_connect_timeout_ms or _TIMEOUT_MS
    return FetchedKeys(
        url,
        lambda: fetch(Request(url, headers={"Accept": "application/json"}), context, timeout_ms / 1000),
        refresh_s=config.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000,
        backoff_s=config.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000,
        backoff_max_s=config.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000,
    )


def _context(options: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context that verifies the issuer's server, from the ``ssl.*`` options of the JAAS entry. Raises
    ValueError."""
    try:
        return tls_settings({key: text for key, text in options.items() if key.startswith("ssl.")}).client_context()
    except BadKeyStore as error:
        raise ValueError(str(error)) from error
