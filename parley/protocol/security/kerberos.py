"""Kerberos for logins with GSSAPI (RFC 4752): the library, the options of a JAAS line, and the client's side.

The library ``gssapi`` uses the Kerberos library of the operating system, which reads ``krb5.conf`` (or the file that
the variable ``KRB5_CONFIG`` names). Its calls may wait for a KDC, so each client login has a thread for them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import math
import os
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from parley.configuration.extras import how_to_install
from parley.light_dataclasses import dataclass
from parley.protocol.security.jaas import LoginModule
from parley.protocol.security.logins import Exchange, LoginRefused

__all__ = ["NO_LAYER", "BadKerberos", "GssapiLogin", "KerberosOptions", "gssapi_library", "has_no_layer", "reason_of"]

NO_LAYER: Final = b"\x01\0\0\0"
"""Authentication only: Kerberos adds no security layer to the connection (RFC 4752, 3.3)."""

_FORGETS_EVERY_S: Final = 300.0
"""The minimum interval at which a login discards its tickets for a new cache. The Kerberos library never frees a cache
in memory."""

_caches = itertools.count(1)


class BadKerberos(ValueError):
    """Kerberos cannot be used with the given options, or is not installed. The message says what to do."""


def gssapi_library() -> Any:
    """Return the module ``gssapi``. Raises BadKerberos if it is not installed."""
    try:
        import gssapi  # optional, and rarely needed
    except ImportError as error:
        raise BadKerberos(
            f"GSSAPI needs the Python library gssapi: {how_to_install('kerberos')}; it needs a C compiler "
            f"and the package libkrb5-dev or krb5-devel of the operating system ({error})"
        ) from error
    return gssapi


def reason_of(error: Any) -> str:
    """Return Kerberos's message for a ``GSSError``. Must be called in the thread that caught the error."""
    is_general = not error.min_code
    statuses = error.get_all_statuses(error.maj_code if is_general else error.min_code, is_general)
    return " ".join(statuses)


def has_no_layer(message: bytes) -> bool:
    """Return True if the last message of a server offers, or the last message of a client chooses, authentication
    without a security layer."""
    return len(message) >= len(NO_LAYER) and bool(message[0] & NO_LAYER[0])


@dataclass(frozen=True, slots=True)
class KerberosOptions:
    """The relevant options of Java's ``Krb5LoginModule``. An empty string means that the option is absent."""

    principal: str = ""
    keytab: str = ""
    use_ticket_cache: bool = False
    ticket_cache: str = ""
    service_name: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> KerberosOptions:
        """Return the options of a login module. Raises BadKerberos if a required option is missing, or the keytab does
        not exist."""
        keytab = ""
        if _is_true(options, "useKeyTab"):
            keytab = options.get("keyTab", "")
            keytab = keytab[5:] if keytab[:5].lower() == "file:" else keytab
            if missing := [name for name in ("keyTab", "principal") if not options.get(name)]:
                raise BadKerberos(f'Krb5LoginModule with useKeyTab=true needs the option {missing[0]}="..."')
            if not os.path.isfile(keytab):
                raise BadKerberos(f"keyTab={keytab}: file not found")
        return cls(
            options.get("principal", ""),
            keytab,
            _is_true(options, "useTicketCache"),
            options.get("ticketCache", ""),
            options.get("serviceName", ""),
        )


def _is_true(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "").lower() == "true"


class GssapiLogin:
    """A login with the keys in a keytab, or with tickets that another program keeps in a cache.

    Tickets for a keytab are cached in memory. They are fetched again when they have expired. They are also fetched
    again after a failed login, but at most every ``_FORGETS_EVERY_S`` seconds.
    """

    mechanism: Final = "GSSAPI"

    def __init__(self, options: KerberosOptions, service: str) -> None:
        """``service`` is the first component of the brokers' principals.

        Raises BadKerberos if the options name neither a keytab nor a ticket cache, or if ``gssapi`` is not installed.
        """
        if not options.keytab and not options.use_ticket_cache:
            raise BadKerberos("Krb5LoginModule needs useKeyTab=true, keyTab and principal, or useTicketCache=true")
        self._gssapi = gssapi_library()
        self._options = options
        self._service = service
        self._cache = _new_cache()
        self._forgot_at = -math.inf
        self._thread = ThreadPoolExecutor(1, "kerberos")

    @classmethod
    def of(cls, module: LoginModule, service_name: str) -> GssapiLogin:
        """Create the login for a JAAS line and ``sasl.kerberos.service.name``, which may be empty if the line contains
        ``serviceName``. Raises BadKerberos if an option is missing, unusable or contradicts another one."""
        options = KerberosOptions.of(module.options)
        if options.service_name and service_name and options.service_name != service_name:
            raise BadKerberos(
                f"serviceName={options.service_name} in the JAAS line is not sasl.kerberos.service.name={service_name}"
            )
        service = service_name or options.service_name
        if not service:
            raise BadKerberos("GSSAPI needs sasl.kerberos.service.name, the first part of the brokers' principals")
        return cls(options, service)

    async def exchange(self, host: str = "") -> Exchange:
        """Start a login at the broker on this host, with a ticket for that broker. Raises LoginRefused if no ticket can
        be obtained."""
        loop = asyncio.get_running_loop()
        context, token = await loop.run_in_executor(self._thread, self._begin, host)
        return self._exchange(context, token)

    def _begin(self, host: str) -> tuple[Any, bytes]:
        gssapi = self._gssapi
        target = f"{self._service}@{_host_name(host)}"
        flags = gssapi.RequirementFlag
        try:
            context = gssapi.SecurityContext(
                name=gssapi.Name(target, gssapi.NameType.hostbased_service),
                creds=self._credentials(),
                mech=gssapi.MechType.kerberos,
                flags=flags.mutual_authentication | flags.integrity,
                usage="initiate",
            )
            return context, context.step() or b""
        except gssapi.exceptions.GSSError as error:
            raise LoginRefused(f"cannot get a Kerberos ticket for {target}: {reason_of(error)}") from error

    def _credentials(self) -> Any:
        options, gssapi = self._options, self._gssapi
        if options.use_ticket_cache:
            cache = {"ccache": options.ticket_cache} if options.ticket_cache else {}
            try:
                found = self._acquire(cache)
                if found.lifetime or not options.keytab:
                    return found
            except gssapi.exceptions.GSSError:
                if not options.keytab:
                    raise
        return self._acquire({"client_keytab": options.keytab, "ccache": self._cache})

    def _acquire(self, store: dict[str, str]) -> Any:
        gssapi, principal = self._gssapi, self._options.principal
        return gssapi.Credentials(
            name=gssapi.Name(principal, gssapi.NameType.kerberos_principal) if principal else None,
            mechs=[gssapi.MechType.kerberos],
            usage="initiate",
            store=store,
        )

    def _exchange(self, context: Any, token: bytes) -> Exchange:
        has_ended = False
        try:
            response = yield token
            while not context.complete:
                response = yield context.step(response) or b""
            if not has_no_layer(context.unwrap(response).message):
                raise LoginRefused("the server requires a security layer, which Kafka does not support")
            yield context.wrap(NO_LAYER, False).message
            has_ended = True
        except self._gssapi.exceptions.GSSError as error:
            raise LoginRefused(f"Kerberos rejects the server's message: {reason_of(error)}") from error
        finally:
            if not has_ended:
                self._forget_tickets()

    def _forget_tickets(self) -> None:
        """Make the next login fetch new tickets, because the broker may have new keys and reject the old tickets."""
        now = time.monotonic()
        if now - self._forgot_at >= _FORGETS_EVERY_S:
            self._forgot_at = now
            self._cache = _new_cache()


def _new_cache() -> str:
    return f"MEMORY:parley-{os.getpid()}-{next(_caches)}"


def _host_name(host: str) -> str:
    """Return the host's name if ``host`` is an IP address and, as in Java, the name resolves to the address. Otherwise,
    return ``host``."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host
    try:
        name = socket.getnameinfo((host, 0), 0)[0]
        return name if host in {found[4][0] for found in socket.getaddrinfo(name, None)} else host
    except OSError:
        return host
