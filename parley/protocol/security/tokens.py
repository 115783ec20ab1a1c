"""The sources of a client's OAUTHBEARER tokens: a token endpoint (KIP-768), a file, or unsigned tokens that the client
creates.

A token is kept for a fraction of its lifetime (``sasl.login.refresh.window.factor``). The next login after that fetches
a new token. Requests to the endpoint run in a thread. No error contains a secret or a token.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote_plus, unquote, urlencode, urlsplit
from urllib.request import Request

from parley.light_dataclasses import dataclass
from parley.protocol.security.http_requests import fetch
from parley.protocol.security.logins import BearerToken, LoginRefused

__all__ = ["ClientCredentials", "FileTokens", "FreshTokens", "UnsecuredTokens", "expiry_of"]

_UNSECURED_SECONDS: Final = 3600


def claims_of(token: str) -> Mapping[str, Any]:
    """Return the claims of a JWT, unverified. Raises LoginRefused if it is not a JWT."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError) as error:
        raise LoginRefused("the token is not a JWT") from error
    if not isinstance(claims, dict):
        raise LoginRefused("the token is not a JWT")
    return claims


def expiry_of(token: str) -> float | None:
    """Return the time at which a JWT expires, in seconds since 1970; None if it does not expire. Raises LoginRefused if
    ``token`` is not a JWT."""
    expires = claims_of(token).get("exp")
    return float(expires) if isinstance(expires, int | float) else None


class FreshTokens:
    """Keeps a token until a fraction of its lifetime, ``window``, has passed. Fetches only one token at a time."""

    def __init__(
        self,
        fetch: Callable[[], str],
        extensions: Mapping[str, str],
        *,
        window: float = 0.8,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``fetch`` runs in a thread, and returns a token or raises LoginRefused. ``clock`` returns seconds since
        1970."""
        self._fetch = fetch
        self._extensions = extensions
        self._window = window
        self._clock = clock
        self._kept = ""
        self._refresh_at = 0.0
        self._one = asyncio.Lock()

    async def token(self) -> BearerToken:
        """Return the token, after fetching a new one if it is due. Raises LoginRefused if no token can be obtained."""
        async with self._one:
            if self._clock() >= self._refresh_at:
                self._kept = await asyncio.to_thread(self._fetch)
                now, expires = self._clock(), expiry_of(self._kept)
                self._refresh_at = now if expires is None else now + (expires - now) * self._window
            return BearerToken(self._kept, self._extensions)


@dataclass(frozen=True, slots=True)
class FileTokens:
    """Reads a token from a file, which another program renews. A call returns the token, or raises LoginRefused if the
    file cannot be read."""

    path: Path

    def __call__(self) -> str:
        try:
            return self.path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise LoginRefused(f"cannot read the token file {self.path}: {type(error).__name__}") from error


@dataclass(frozen=True, slots=True)
class UnsecuredTokens:
    """Creates unsigned tokens, for tests, with the claims of ``unsecuredLoginStringClaim_sub`` and similar options."""

    claims: Mapping[str, Any]
    lifetime_seconds: int = _UNSECURED_SECONDS

    def __call__(self) -> str:
        now = int(time.time() * 1000) / 1000  # Kafka rounds to milliseconds, and refuses a token from the future
        claims = {"iat": now, "exp": now + self.lifetime_seconds, **self.claims}
        return ".".join((_part({"alg": "none"}), _part(claims), ""))


def _part(data: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(data, separators=(",", ":")).encode()).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Requests tokens from a token endpoint, with the client's id and secret (RFC 6749, section 4.4).

    A call blocks, and returns a token or raises LoginRefused. It repeats a failed request after pauses that double each
    time, as long as all attempts began within ``backoff_max_s``. It does not repeat a request that the endpoint rejects
    with a status below 500.
    """

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    tls: ssl.SSLContext | None = None
    timeout_s: float = 10.0
    backoff_s: float = 0.1
    backoff_max_s: float = 10.0
    encodes_header: bool = False
    """True if id and secret are URL-encoded in the header, as RFC 6749 requires (sasl.oauthbearer.header.urlencode)."""

    def __call__(self) -> str:
        wait_s, begun = self.backoff_s, time.monotonic()
        while True:
            try:
                return self._fetch()
            except (OSError, HTTPException) as error:
                reason = error.code if isinstance(error, HTTPError) else getattr(error, "reason", None) or error
                is_final = isinstance(error, HTTPError) and error.code < 500
                if is_final or time.monotonic() - begun + wait_s > self.backoff_max_s:
                    raise LoginRefused(f"{self._shown} returned no token: {reason}") from None
            time.sleep(wait_s)
            wait_s *= 2

    def _fetch(self) -> str:
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        request = Request(
            self.url, urlencode(form).encode(), {"Authorization": self._header, "Accept": "application/json"}
        )
        try:
            token = json.loads(fetch(request, self.tls, self.timeout_s))["access_token"]
        except (ValueError, KeyError, TypeError):
            token = None
        if not isinstance(token, str) or not token.strip():
            raise LoginRefused(f"the response of {self._shown} contains no access_token")
        return token.strip()

    @property
    def _header(self) -> str:
        encoded = quote_plus if self.encodes_header else str
        pair = f"{encoded(self.client_id)}:{encoded(self.client_secret)}"
        return "Basic " + base64.b64encode(pair.encode()).decode()

    @property
    def _shown(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}{unquote(parts.path)}"
