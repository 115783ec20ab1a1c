"""Basic authentication for a REST API, as in Kafka's ``BasicAuthSecurityRestExtension``.

The section ``KafkaConnect`` of a JAAS file names the ``PropertyFileLoginModule``, whose option ``file`` names a
properties file with a line ``user=password`` for each user. A replaced file takes effect with the next request. Exempt
requests are signed instead. They are verified later, when the whole body has arrived, so bodies with a claimed
signature can use at most ``UNVERIFIED_BYTES_MAX`` of memory. No error contains a password.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.configuration.file_changes import fingerprint_of
from parley.configuration.properties import read_properties
from parley.pipeline.service.errors import ServiceError
from parley.pipeline.service.requests import error
from parley.protocol.security.jaas import BadJaas, parse_jaas_file
from parley.protocol.security.passwords import Passwords, basic_credentials

JAAS_FILE: Final = "java.security.auth.login.config"
SECTION: Final = "KafkaConnect"
MODULE: Final = "PropertyFileLoginModule"
REFUSED: Final = "User cannot access the resource."
_CHALLENGE: Final = {"www-authenticate": 'Basic realm="connect", charset="UTF-8"'}
_REFUSAL_DELAY_S: Final = 0.1
"""How long the response to a refused request is delayed, so that guessing passwords takes time."""
UNVERIFIED_BYTES_MAX: Final = 64 * 1024 * 1024
"""The memory limit for the large bodies of all requests that claim to be signed. Beyond it they get status 503."""
_SMALL_BODY_BYTES: Final = 64 * 1024
"""The first bytes of each body, which do not count. Otherwise an attacker could keep workers from sending ordinary
requests.
"""
_LOG_PERIOD_S: Final = 1.0
"""Failed logins are logged at most once in this period."""
_log = logging.getLogger(__name__)


def jaas_file_of(given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> Path:
    """Return the JAAS file that the configuration or ``KAFKA_OPTS`` names. Raises ServiceError if neither names one."""
    path = given.get(JAAS_FILE, "").strip()
    if not path:
        prefix = f"-D{JAAS_FILE}="
        try:
            options = shlex.split(environment.get("KAFKA_OPTS", ""))
        except ValueError as error:
            raise ServiceError(f"KAFKA_OPTS cannot be read: {error}; set {JAAS_FILE} instead") from None
        path = next((one.removeprefix(prefix) for one in reversed(options) if one.startswith(prefix)), "")
    if not path:
        raise ServiceError(f"the REST API requires logins: set {JAAS_FILE} to a JAAS file that names the users")
    return Path(path)


class BasicLogin:
    """Verifies the names and passwords of a REST API's users, which are in a file. Changes of the file take effect."""

    def __init__(self, jaas_file: Path, section: str = SECTION) -> None:
        """Read the files, so this blocks. Raises ServiceError if they cannot be read, or name no users."""
        self._path = _users_file(jaas_file, section)
        self._read_from = fingerprint_of([self._path])
        self._users = _read_users(self._path)

    def user_of(self, authorization: str) -> str | None:
        """Return the user that an ``Authorization`` header names; None if the name or the password is wrong."""
        name, password = basic_credentials(authorization)
        return name if name and self._current().verify(name, password) else None

    def _current(self) -> Passwords:
        found = fingerprint_of([self._path])
        if found != self._read_from:
            self._read_from = found
            try:
                self._users = _read_users(self._path)
            except ServiceError as error:
                _log.error("the users of the REST API were not reloaded: %s", error)
            else:
                _log.info("the users of the REST API were reloaded from %s", self._path)
        return self._users


def _users_file(jaas_file: Path, section: str) -> str:
    try:
        sections = parse_jaas_file(jaas_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error if isinstance(error, BadJaas) else getattr(error, "strerror", None) or type(error).__name__
        raise ServiceError(f"{JAAS_FILE}={jaas_file} cannot be read: {reason}") from None
    modules = sections.get(section, [])
    if len(modules) != 1 or modules[0].name != MODULE or not modules[0].options.get("file"):
        raise ServiceError(
            f"{jaas_file} needs a section {section} with one login module: {section} {{ "
            f'org.apache.kafka.connect.rest.basic.auth.extension.{MODULE} required file="/path/users.properties"; }};'
        )
    return modules[0].options["file"]


def _read_users(path: str) -> Passwords:
    try:
        users = read_properties(path)
    except OSError as error:
        raise ServiceError(f"{path} cannot be read: {error.strerror or type(error).__name__}") from None
    except ValueError:
        raise ServiceError(f"{path} is malformed: it needs a line user=password for each user") from None
    if not users or not all(users.values()):
        raise ServiceError(f"{path} needs a line user=password for each user, and at least one; no password is empty")
    return Passwords(users)


class DemandLogin:
    """An ASGI application in front of another one. Requests without a valid name and password get status 401."""

    def __init__(
        self, app: ASGIApp, login: BasicLogin, is_exempt: Callable[[str, str, Headers], bool] = lambda *_: False
    ) -> None:
        """``is_exempt`` receives the method, the path and the headers of a request without a login."""
        self._app = app
        self._login = login
        self._is_exempt = is_exempt
        self._failures = _Failures()
        self._unverified = _Unverified()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        login = headers.get("authorization", "")
        if self._login.user_of(login) is not None:
            await self._app(scope, receive, send)
        elif self._is_exempt(scope["method"], scope["path"], headers):
            with self._unverified.limited(receive) as limited:
                await self._app(scope, limited, send)
        else:
            self._failures.log(scope, basic_credentials(login)[0])
            await asyncio.sleep(_REFUSAL_DELAY_S)
            await error(401, REFUSED, _CHALLENGE)(scope, receive, send)


class _Unverified:
    """The memory used by the bodies of requests whose signature has not been verified yet."""

    def __init__(self) -> None:
        self._held = 0

    @contextmanager
    def limited(self, receive: Receive) -> Iterator[Receive]:
        """Yield a ``receive`` for one request. It raises HTTPException (503) if there is not enough memory for the
        request's body.
        """
        size = counted = 0

        async def limited() -> Message:
            nonlocal size, counted
            message = await receive()
            size += len(message.get("body", b""))
            more = max(0, size - _SMALL_BODY_BYTES) - counted
            if self._held + more > UNVERIFIED_BYTES_MAX:
                raise HTTPException(
                    503, "This worker does not have enough memory for more requests of other workers: try again."
                )
            self._held += more
            counted += more
            return message

        try:
            yield limited
        finally:
            self._held -= counted


class _Failures:
    """Logs failed logins, at most one line per period."""

    def __init__(self) -> None:
        self._next = 0.0
        self._unsaid = 0

    def log(self, scope: Scope, name: str) -> None:
        if not name:
            return  # browsers first send a request without a name
        if time.monotonic() < self._next:
            self._unsaid += 1
            return
        client = scope.get("client")
        address = "an unknown address" if client is None else client[0]
        more = f", and {self._unsaid} more before" if self._unsaid else ""
        _log.warning("authentication failed: user %r from %s%s", name, address, more)
        self._next, self._unsaid = time.monotonic() + _LOG_PERIOD_S, 0
