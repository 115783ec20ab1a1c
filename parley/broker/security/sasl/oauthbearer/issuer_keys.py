"""The public keys of a token issuer (JWKS): from a file, which is read again when it changes, or from an https address.

The first login that needs new keys from an address fetches them in a thread. New keys are needed when the keys are
older than ``sasl.oauthbearer.jwks.endpoint.refresh.ms``, or when a token names an unknown key. The latter causes at
most one fetch per ``UNKNOWN_KEY_S``, so that clients cannot make the broker flood the issuer. If the issuer does not
respond, the broker keeps the old keys.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from parley.broker.config import ConfigError, Problem
from parley.broker.security.sasl.mechanism import MechanismSetup
from parley.configuration.key_stores import BadKeyStore
from parley.configuration.tls import tls_settings

_log = logging.getLogger(__name__)

UNKNOWN_KEY_S: Final = 10.0
"""The minimum time, in seconds, between two fetches because of unknown keys."""
_BYTES_MAX: Final = 1 << 20
_KEYS_MAX: Final = 1000
_URL_KEY: Final = "sasl.oauthbearer.jwks.endpoint.url"
_TIMEOUT_MS: Final = 10_000

Jwk = Mapping[str, Any]


class IssuerKeys(Protocol):
    """The currently known keys of an issuer."""

    def are_fresh(self, key_id: str | None) -> bool:
        """Return True if no ``refresh`` is needed before ``find``."""

    def find(self, key_id: str | None) -> Sequence[Jwk]:
        """Return the keys with this id, or all keys if the token does not name a key."""

    async def refresh(self, key_id: str | None) -> None:
        """Read or fetch the keys again if they may have changed. Does not raise."""


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
        """Raises OSError or ValueError if the file cannot be used."""
        self._path = path
        self._keys: Sequence[Jwk] = ()
        self._seen: tuple[int, int] | None = None
        self._read()

    def _read(self) -> None:
        found = os.stat(self._path)
        if (found.st_mtime_ns, found.st_size) != self._seen:
            self._keys = _parsed(self._path.read_bytes())
            self._seen = found.st_mtime_ns, found.st_size

    def are_fresh(self, key_id: str | None) -> bool:
        return False

    def find(self, key_id: str | None) -> Sequence[Jwk]:
        return _with_id(self._keys, key_id)

    async def refresh(self, key_id: str | None) -> None:
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
        """``fetch`` blocks, and raises OSError or HTTPException if the keys cannot be fetched."""
        self._url = url
        self._fetch = fetch
        self._refresh_s = refresh_s
        self._backoff_s = self._first_backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._clock = clock
        self._keys: Sequence[Jwk] = ()
        self._due_at = -float("inf")
        self._unknown_at = -float("inf")
        self._one = asyncio.Lock()

    def are_fresh(self, key_id: str | None) -> bool:
        now = self._clock()
        is_known = bool(_with_id(self._keys, key_id))
        return now < self._due_at and (is_known or now < self._unknown_at)

    def find(self, key_id: str | None) -> Sequence[Jwk]:
        return _with_id(self._keys, key_id)

    async def refresh(self, key_id: str | None) -> None:
        async with self._one:
            if not self.are_fresh(key_id):  # another login may have fetched them in the meantime
                self._unknown_at = self._clock() + UNKNOWN_KEY_S
                await self._get()

    async def _get(self) -> None:
        try:
            self._keys = _parsed(await asyncio.to_thread(self._fetch))
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            _log.error("the keys that verify tokens cannot be fetched", extra=_facts(self._url, error))
            self._due_at = self._unknown_at = self._clock() + self._backoff_s
            self._backoff_s = min(2 * self._backoff_s, self._backoff_max_s)
        else:
            self._due_at = self._clock() + self._refresh_s
            self._backoff_s = self._first_backoff_s


def _facts(url: str, error: Exception) -> dict[str, str]:
    return {"url": url, "reason": str(error) or type(error).__name__}


# --- From the configuration ---


def issuer_keys(setup: MechanismSetup) -> IssuerKeys:
    """Return the keys that the configuration names. Raises ConfigError if their address is invalid."""
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
        lambda: _download(url, context, timeout_ms / 1000),
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


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects, because a redirect would let another server supply the keys."""

    def redirect_request(self, *_: Any) -> None:
        """Refuse the redirect."""


def _download(url: str, context: ssl.SSLContext | None, timeout_s: float) -> bytes:
    opener = build_opener(_NoRedirects, *([HTTPSHandler(context=context)] if context else []))
    with opener.open(Request(url, headers={"Accept": "application/json"}), timeout=timeout_s) as response:
        body: bytes = response.read(_BYTES_MAX + 1)
    if len(body) > _BYTES_MAX:
        raise ValueError(f"more than {_BYTES_MAX} bytes")
    return body
