"""GSSAPI (RFC 4752) with Kerberos: the client presents a ticket for this broker, whose keys are in a keytab.

The keytab is read at each login, so new keys do not require a restart. As in Kafka, no security layer is offered (TLS
provides one), the authorization id is ignored, and ``sasl.kerberos.principal.to.local.rules`` determine the user name.
Tickets are checked in a separate thread, because the Kerberos library records in a file which tickets it has seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from parley.broker.config import ConfigError, Problem
from parley.broker.security.principal import user
from parley.broker.security.sasl.kerberos_names import NoShortName, ShortNames
from parley.broker.security.sasl.mechanism import Exchange, Identity, LoginRefused, Mechanism, MechanismSetup, Reply
from parley.protocol.security.kerberos import (
    NO_LAYER,
    BadKerberos,
    KerberosOptions,
    gssapi_library,
    has_no_layer,
    reason_of,
)

_RULES_KEY: Final = "sasl.kerberos.principal.to.local.rules"
_THREAD: Final = ThreadPoolExecutor(1, "kerberos logins")
"""The thread for Kerberos logins, which all listeners share. Like the event loop, it handles one login at a time."""


class GssapiMechanism:
    """GSSAPI with the keys of one service principal."""

    def __init__(self, options: KerberosOptions, rules: tuple[str, ...]) -> None:
        """Blocks while it reads the keytab. Raises BadKerberos if the keytab contains no keys of the principal, or
        ValueError if a rule is malformed."""
        self._gssapi = gssapi = gssapi_library()
        self._names = ShortNames(rules, _default_realm(gssapi))
        try:
            self._credentials = gssapi.Credentials(
                name=gssapi.Name(options.principal, gssapi.NameType.kerberos_principal),
                mechs=[gssapi.MechType.kerberos],
                usage="accept",
                store={"keytab": options.keytab},
            )
        except gssapi.exceptions.GSSError as error:
            raise BadKerberos(f"keyTab={options.keytab}: {reason_of(error)}") from error

    def begin(self) -> Exchange:
        return GssapiExchange(self._gssapi, self._credentials, self._names)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class GssapiExchange:
    """One login: the Kerberos tokens, then the agreement to use no security layer."""

    def __init__(self, gssapi: Any, credentials: Any, names: ShortNames) -> None:
        self.user = ""
        self._gssapi = gssapi
        self._credentials = credentials
        self._names = names
        self._replies = self._converse()
        next(self._replies)

    def evaluate(self, token: bytes) -> Awaitable[Reply]:
        return asyncio.get_running_loop().run_in_executor(_THREAD, self._reply, token)

    def _reply(self, token: bytes) -> Reply:
        try:
            return Reply(self._replies.send(token))
        except StopIteration as end:
            identity: Identity = end.value
            return Reply(b"", identity)
        except self._gssapi.exceptions.GSSError as error:
            raise LoginRefused(reason_of(error)) from error

    def _converse(self) -> Generator[bytes, bytes, Identity]:
        """Yield the replies, receive the client's tokens, and return the client's identity."""
        token = yield b""
        context = self._gssapi.SecurityContext(creds=self._credentials, usage="accept")
        reply = context.step(token)
        while not context.complete:
            token = yield reply or b""
            reply = context.step(token)
        identity = self._identity(context)
        if reply and (yield reply):
            raise LoginRefused("the client sent a Kerberos token after the last token")
        chosen = yield context.wrap(NO_LAYER, False).message
        if not has_no_layer(context.unwrap(chosen).message):
            raise LoginRefused("the client chose a security layer that was not offered")
        return identity

    def _identity(self, context: Any) -> Identity:
        if context.mech != self._gssapi.MechType.kerberos:
            raise LoginRefused("the client uses a GSSAPI mechanism other than Kerberos")
        try:
            self.user = str(context.initiator_name)
            return Identity(user(self._names.name_of(self.user)))
        except (NoShortName, UnicodeDecodeError) as error:
            raise LoginRefused(str(error)) from None


def _default_realm(gssapi: Any) -> str:
    """Return the default realm; empty if the Kerberos configuration contains none."""
    try:
        name = gssapi.Name("name", gssapi.NameType.kerberos_principal).canonicalize(gssapi.MechType.kerberos)
    except gssapi.exceptions.GSSError:
        return ""
    return str(name).rpartition("@")[2]


def make(setup: MechanismSetup) -> Mechanism:
    """Return the GSSAPI mechanism for a listener. Blocks while it reads the keytab. Raises ConfigError if it cannot be
    used."""
    try:
        if setup.login_module.rpartition(".")[2] != "Krb5LoginModule":
            raise BadKerberos("the key listener.name.<name>.gssapi.sasl.jaas.config with a Krb5LoginModule is missing")
        options = KerberosOptions.of(setup.options)
        if not options.keytab:
            raise BadKerberos("the Krb5LoginModule of a broker needs useKeyTab=true, keyTab and principal")
        rules = setup.config.sasl_kerberos_principal_to_local_rules
        try:
            return GssapiMechanism(options, rules)
        except BadKerberos:
            raise
        except ValueError as error:
            raise ConfigError([Problem(_RULES_KEY, ",".join(rules), f"a list of rules. {error}")]) from None
    except BadKerberos as error:
        raise ConfigError(
            [Problem("sasl.enabled.mechanisms", setup.name, f"a mechanism that can be used: {error}")]
        ) from None
