"""The table of checks: the name of each, its severity, the fix, and the function that finds the weakness.

The functions only decide from the facts in ``Subject``, and yield a string for each weakness. The page
docs/security-checks.md is generated from this table.
"""

from __future__ import annotations

import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Final

from parley.broker.config import BrokerConfig
from parley.broker.config.key_definition import ConfigType
from parley.broker.security.acls.bindings import WILDCARD, AclBinding, PatternType, PermissionType
from parley.broker.security.listener_security import max_reauth_ms
from parley.broker.security.operations import Operation
from parley.broker.security.principal import ANONYMOUS
from parley.broker.security.resources import ResourceType
from parley.consensus.protection import Guard
from parley.tools.security_check.subject import PROPERTIES_FILE, FileMode, Subject, is_local

EVERYONE: Final = "User:*"
EXPIRES_SOON: Final = timedelta(days=30)
_OTHERS: Final = 0o027
"""The permission bits that files with secrets must not have: all for other users, and writing by the group. Reading by
the group is allowed: a service's user may share a group with the tool that renews its certificates."""
_GROUP_WRITES: Final = 0o020
_WRITING: Final = 0o022
_SECRET_WORDS: Final = re.compile(r"(password|clientSecret)\s*=|user_")
_READING: Final = (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
_WEAK_CIPHERS: Final = ("NULL", "EXPORT", "RC4", "_DES", "3DES", "MD5", "anon", "TLS_RSA_", "_CBC_")
_UNSECURED: Final = "Unsecured"
_RESOURCE_FLAGS: Final = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.CLUSTER: "--cluster",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
    ResourceType.DELEGATION_TOKEN: "--delegation-token",
    ResourceType.USER: "--user-principal",
}
METRICS_LOGIN: Final = "listener.name.metrics.plain.sasl.jaas.config"


class Severity(IntEnum):
    """The severity of a finding. Notes are informational, and do not make the check fail."""

    HIGH = 3
    MEDIUM = 2
    NOTE = 1


@dataclass(frozen=True, slots=True)
class Check:
    """A row of the table. ``asks`` is the question, ``advice`` the fix.

    ``find`` yields a description of each weakness, or a pair of a description and the advice that replaces the row's.
    """

    name: str
    severity: Severity
    asks: str
    advice: str
    find: Callable[[Subject], Iterable[str | tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Finding:
    """A weakness: the check that found it, the name of the subject, a description, and the fix."""

    check: Check
    subject: str
    text: str
    advice: str


def findings(subject: Subject) -> list[Finding]:
    """Apply all checks that are possible for the subject. Returns the findings, the most severe first."""
    found = []
    for check in CHECKS if subject.has_settings else _OF_CERTIFICATES:
        for each in check.find(subject):
            text, advice = (each, check.advice) if isinstance(each, str) else each
            found.append(Finding(check, subject.name, text, advice))
    return sorted(found, key=lambda finding: -finding.check.severity)


# --- Listeners ---


def _without_tls(subject: Subject) -> Iterator[str]:
    for listener in subject.addresses:
        if not listener.is_tls:
            reach = " (this machine only)" if is_local(listener.host) else ""
            yield f"{listener} is {listener.protocol}: records and logins cross the network in clear text{reach}"


def _without_login(subject: Subject) -> Iterator[str]:
    for listener in subject.addresses:
        if not listener.is_sasl and not subject.demands_certificate(listener):
            yield f"{listener} is {listener.protocol}: its clients are User:ANONYMOUS"


def _plain_passwords(subject: Subject) -> Iterator[str]:
    for listener, own in subject.of_listeners():
        if listener.is_sasl and not listener.is_tls and "PLAIN" in own.sasl_enabled_mechanisms:
            yield f"{listener} allows PLAIN: passwords are sent in clear text"


def _old_tls(subject: Subject) -> Iterator[str]:
    for listener, own in subject.of_listeners():
        old = [version for version in own.ssl_enabled_protocols if version not in ("TLSv1.2", "TLSv1.3")]
        if listener.is_tls and old:
            yield f"{listener} names {', '.join(old)}"


def _weak_ciphers(subject: Subject) -> Iterator[str]:
    for listener, own in subject.of_listeners():
        weak = [suite for suite in own.ssl_cipher_suites if any(part in suite for part in _WEAK_CIPHERS)]
        if listener.is_tls and weak:
            yield f"{listener} allows {', '.join(weak)}"


def _expired(subject: Subject) -> Iterator[str]:
    for name, expires in subject.certificates.items():
        if expires <= subject.now:
            yield f"the certificate of {name} expired at {expires.isoformat(timespec='minutes')}"


def _expiring(subject: Subject) -> Iterator[str]:
    for name, expires in subject.certificates.items():
        if subject.now < expires <= subject.now + EXPIRES_SOON:
            yield f"the certificate of {name} expires at {expires.isoformat(timespec='minutes')}"


def _expired_lists(subject: Subject) -> Iterator[str]:
    for name, expires in subject.revocation_lists.items():
        if expires <= subject.now:
            yield f"a revocation list of {name} expired at {expires.isoformat(timespec='minutes')}"


def _unsecured_tokens(subject: Subject) -> Iterator[str]:
    for listener, own in subject.of_listeners():
        prefix = f"listener.name.{listener.name.lower()}.oauthbearer."
        handler = subject.config.given.get(f"{prefix}sasl.server.callback.handler.class", "")
        if listener.is_sasl and "OAUTHBEARER" in own.sasl_enabled_mechanisms and _UNSECURED in handler:
            yield f"{listener} accepts tokens without a signature: any client can claim to be any user"


def _unbound_tokens(subject: Subject) -> Iterator[str]:
    for listener, own in subject.of_listeners():
        if not listener.is_sasl or "OAUTHBEARER" not in own.sasl_enabled_mechanisms:
            continue
        keys = ("sasl.oauthbearer.expected.issuer", "sasl.oauthbearer.expected.audience")
        if missing := [key for key in keys if not getattr(own, key.replace(".", "_"))]:
            yield f"{listener} accepts tokens that were issued for other services: {' and '.join(missing)} not set"


# --- Between brokers ---


def _open_between_brokers(subject: Subject) -> Iterator[str]:
    listener = subject.inter_broker
    if not listener.is_tls or not (listener.is_sasl or subject.demands_certificate(listener)):
        yield f"brokers communicate over {listener}, which is {listener.protocol}"


def _unverified_hosts(subject: Subject) -> Iterator[str]:
    listener = subject.inter_broker
    own = subject.config.for_listener(listener.name)
    if listener.is_tls and not own.ssl_endpoint_identification_algorithm:
        yield f"brokers do not verify the host names in each other's certificates on {listener}"


def _refused_between_brokers(subject: Subject) -> Iterator[str]:
    if subject.refused_between_brokers:
        yield f"brokers refuse the certificate of {subject.inter_broker}: {subject.refused_between_brokers}"


def _shared_listener(subject: Subject) -> Iterator[str]:
    listener = subject.inter_broker
    if len(subject.listeners) == 1 and not is_local(listener.host):
        yield f"clients and brokers share {listener}"


# --- Rights ---


def _no_authorizer(subject: Subject) -> Iterator[str]:
    if not subject.config.authorizer_class_name:
        yield "authorizer.class.name is not set: every client may do everything"


def _everyone_allowed(subject: Subject) -> Iterator[str]:
    if subject.config.authorizer_class_name and subject.config.allow_everyone_if_no_acl_found:
        yield "allow.everyone.if.no.acl.found=true: resources without ACLs are open to every client"


def _anonymous_super_user(subject: Subject) -> Iterator[str]:
    for each in _super_users(subject):
        if each in (EVERYONE, str(ANONYMOUS)):
            yield f"super.users contains {each}"


def _listed_super_users(subject: Subject) -> Iterator[str]:
    if users := _super_users(subject):
        yield f"ACLs do not restrict {', '.join(users)}"


def _super_users(subject: Subject) -> Sequence[str]:
    return [str(each).strip() for each in str(subject.config.super_users).split(";") if str(each).strip()]


def _anonymous_rights(subject: Subject) -> Iterator[tuple[str, str]]:
    for acl in subject.acls or ():
        if acl.permission is PermissionType.ALLOW and acl.principal == str(ANONYMOUS):
            yield str(acl), f"remove it: {_removal(acl)}"


def _removal(acl: AclBinding) -> str:
    """Return the ``parley acls`` command that removes this ALLOW ACL."""
    words = ["parley", "acls", "--remove", "--allow-principal", acl.principal]
    words += ["--operation", "".join(part.capitalize() for part in acl.operation.name.split("_"))]
    words += [] if acl.host == "*" else ["--allow-host", acl.host]
    words += [_RESOURCE_FLAGS[acl.pattern.type]]
    words += [] if acl.pattern.type is ResourceType.CLUSTER else [acl.pattern.name]
    words += [] if acl.pattern.pattern_type is PatternType.LITERAL else ["--resource-pattern-type", "prefixed"]
    return shlex.join(words)


def _changes_by_everyone(subject: Subject) -> Iterator[str]:
    for acl in subject.acls or ():
        is_change = acl.operation not in _READING
        if acl.permission is PermissionType.ALLOW and acl.principal == EVERYONE and is_change:
            yield str(acl)


def _reading_by_everyone(subject: Subject) -> Iterator[str]:
    for acl in subject.acls or ():
        if acl.permission is PermissionType.ALLOW and acl.principal == EVERYONE and acl.operation in _READING:
            yield str(acl)


def _wildcards(subject: Subject) -> Iterator[str]:
    for acl in subject.acls or ():
        pattern = acl.pattern
        is_wildcard = pattern.pattern_type is PatternType.LITERAL and pattern.name == WILDCARD
        if acl.permission is PermissionType.ALLOW and is_wildcard and acl.operation not in _READING:
            yield str(acl)


def _strangers(subject: Subject) -> Iterable[str]:
    return subject.strangers


def _endless_sessions(subject: Subject) -> Iterator[str]:
    for listener, own in subject.of_listeners():
        mechanisms = own.sasl_enabled_mechanisms if listener.is_sasl else ()
        if not all(max_reauth_ms(listener.name, mechanism, own) for mechanism in mechanisms):
            yield f"a connection to {listener} outlives the password that opened it"


# --- Secrets and files ---


def _readable(files: Iterable[FileMode]) -> Iterator[str]:
    for file in files:
        if file.mode & (_OTHERS if file.is_reachable else _GROUP_WRITES):
            yield f"{file.path} ({file.key}) has the mode {file.mode & 0o777:o}"


def _readable_secrets(subject: Subject) -> Iterable[str]:
    holds_secrets = any(_clear_passwords(subject))
    return _readable(each for each in subject.secret_files if each.key != PROPERTIES_FILE or holds_secrets)


def _writable_trust(subject: Subject) -> Iterator[str]:
    for file in subject.trust_files:
        # In a folder like /tmp, with the sticky bit, only owners can replace their files.
        is_writable = file.mode & _WRITING and not (stat.S_ISDIR(file.mode) and file.mode & stat.S_ISVTX)
        if is_writable:
            yield f"{file.path} ({file.key}) has the mode {file.mode & 0o777:o}"


def _readable_data(subject: Subject) -> Iterable[str]:
    return _readable(subject.data_folders)


def _clear_passwords(subject: Subject) -> Iterator[str]:
    for name, text in subject.written.items():
        key = subject.config.key(name)
        is_secret = key is not None and key.type is ConfigType.PASSWORD
        if is_secret and text and "${" not in text and _has_secret(name, text):
            yield f"{name} has its value in the file"


def _has_secret(name: str, text: str) -> bool:
    """Return True if the value of a sensitive setting is a secret. Certificates, and logins without a password, are
    not."""
    if name.endswith(("ssl.truststore.certificates", "ssl.keystore.certificate.chain")):
        return False
    return "jaas.config" not in name or _SECRET_WORDS.search(text) is not None


def _unencrypted_passwords(subject: Subject) -> Iterator[str]:
    is_tls_or_sasl = any(each.is_tls or each.is_sasl for each in subject.listeners)
    is_given = "password.encoder.secret" in {**subject.config.given, **subject.written}
    if is_tls_or_sasl and not is_given:
        yield "password.encoder.secret is not set: passwords that are set while brokers run are stored in clear text"


# --- The store and the metrics ---


def _open_store(subject: Subject) -> Iterator[tuple[str, str]]:
    if subject.store is not None and subject.store.tree.guard is not Guard.CLOSED:
        yield subject.store.tree.text, subject.store.tree.advice


def _plaintext_store(subject: Subject) -> Iterator[tuple[str, str]]:
    if subject.store is not None and subject.store.connection.guard is not Guard.CLOSED:
        yield subject.store.connection.text, subject.store.connection.advice


def _open_metrics(subject: Subject) -> Iterator[str]:
    config = subject.config
    address = config.metrics_address
    if address is None or is_local(address[0]):
        return
    if not config.metrics_is_tls:
        yield f"metrics.listener={config.metrics_listener} is plain HTTP"
    login = {**config.given, **subject.written}.get(METRICS_LOGIN, "").strip()
    if not login and not _metrics_need_certificate(config):
        yield f"metrics.listener={config.metrics_listener} has no login"


def _metrics_need_certificate(config: BrokerConfig) -> bool:
    return config.metrics_is_tls and config.for_listener("METRICS").ssl_client_auth == "required"


_H, _M, _N = Severity.HIGH, Severity.MEDIUM, Severity.NOTE

CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "plaintext-listener", _H, "Does a listener not use TLS?",
        "make the listener SSL or SASL_SSL in listener.security.protocol.map", _without_tls,
    ),
    Check(
        "no-login", _H, "Does a listener accept clients that neither log in nor have a certificate?",
        "make the listener SASL_SSL, or SSL with ssl.client.auth=required", _without_login,
    ),
    Check(
        "stranger-served", _H, "Does a broker serve a client without an account?",
        "close the listener (plaintext-listener, no-login), or deny User:ANONYMOUS with an authorizer", _strangers,
    ),
    Check(
        "plain-without-tls", _H, "Do passwords cross the network in clear text?",
        "offer PLAIN on SASL_SSL listeners only, or SCRAM-SHA-512 instead", _plain_passwords,
    ),
    Check(
        "old-tls", _H, "Does a listener allow a TLS version before 1.2?",
        "leave ssl.enabled.protocols at TLSv1.2,TLSv1.3", _old_tls,
    ),
    Check(
        "weak-ciphers", _M, "Does a listener allow weak cipher suites, or suites without forward secrecy?",
        "remove them from ssl.cipher.suites, or leave it empty", _weak_ciphers,
    ),
    Check(
        "expired-certificate", _H, "Has a listener's certificate expired?",
        "replace the content of the file of ssl.keystore.location; the broker reads it within seconds", _expired,
    ),
    Check(
        "expiring-certificate", _M, "Does a listener's certificate expire within 30 days?",
        "replace the file of ssl.keystore.location; brokers reload it within seconds", _expiring,
    ),
    Check(
        "expired-revocation-list", _H, "Has a revocation list expired, so that every certificate is rejected?",
        "replace the file of ssl.crl.location; brokers reload it within seconds", _expired_lists,
    ),
    Check(
        "unsecured-tokens", _H, "Does OAUTHBEARER accept tokens without a signature?",
        "remove OAuthBearerUnsecuredValidatorCallbackHandler, and set sasl.oauthbearer.jwks.endpoint.url",
        _unsecured_tokens,
    ),
    Check(
        "tokens-of-others", _M, "Does OAUTHBEARER accept tokens for other services?",
        "set sasl.oauthbearer.expected.issuer and sasl.oauthbearer.expected.audience", _unbound_tokens,
    ),
    Check(
        "inter-broker-open", _H, "Do brokers communicate without TLS or without a login?",
        "set inter.broker.listener.name to a SASL_SSL listener, or one with client certificates", _open_between_brokers,
    ),
    Check(
        "inter-broker-certificate", _H, "Does the trust store of the brokers' listener reject the broker's own "
        "certificate, so that the broker does not start?",
        "replace the file of ssl.keystore.location by an unexpired certificate of an authority in the trust store",
        _refused_between_brokers,
    ),
    Check(
        "hosts-not-verified", _M, "Do brokers accept each other's certificates without checking the host names?",
        "leave ssl.endpoint.identification.algorithm at https", _unverified_hosts,
    ),
    Check(
        "shared-listener", _N, "Do clients share a listener with the brokers?",
        "give the brokers a separate listener, which a firewall reserves for them", _shared_listener,
    ),
    Check(
        "no-authorizer", _H, "May every client do everything?",
        "set authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", _no_authorizer,
    ),
    Check(
        "allow-everyone", _H, "Are resources without ACLs open to everyone?",
        "set allow.everyone.if.no.acl.found=false, after `parley acls` has allowed what clients need",
        _everyone_allowed,
    ),
    Check(
        "anonymous-super-user", _H, "Is everyone a super user?",
        "remove it from super.users", _anonymous_super_user,
    ),
    Check(
        "super-users", _N, "Which users are super users?",
        "limit super.users to the brokers and a few administrators", _listed_super_users,
    ),
    Check(
        "anonymous-rights", _H, "Does an ACL grant permissions to clients without a login?",
        "remove it with `parley acls --remove`, or demand a login", _anonymous_rights,
    ),
    Check(
        "everyone-may-change", _H, "May every user change something?",
        "replace User:* with the users that need it", _changes_by_everyone,
    ),
    Check(
        "everyone-may-read", _M, "May every user read something?",
        "replace User:* with the users that need it", _reading_by_everyone,
    ),
    Check(
        "wildcard-resource", _N, "May a user change resources of any name?",
        "name the resource, or a prefix of names (--resource-pattern-type prefixed)", _wildcards,
    ),
    Check(
        "endless-sessions", _N, "Do connections outlive the passwords that opened them?",
        "set connections.max.reauth.ms, so that clients log in again", _endless_sessions,
    ),
    Check(
        "readable-secrets", _H, "Can other users of the machine read a file with a secret?",
        "chmod go-rwx FILE, and run the broker as its owner", _readable_secrets,
    ),
    Check(
        "writable-trust", _H, "Can other users of the machine change who may log in?",
        "chmod go-w FILE and its folder, and make the broker's user or root their owner", _writable_trust,
    ),
    Check(
        "readable-data", _M, "Can other users of the machine read the records?",
        "chmod go-rwx FOLDER", _readable_data,
    ),
    Check(
        "password-in-file", _M, "Does the properties file contain passwords?",
        "use a config provider instead: ${file:/run/secrets/parley.properties:NAME}", _clear_passwords,
    ),
    Check(
        "passwords-in-store", _M, "Are passwords stored in clear text?",
        "set the same password.encoder.secret on every broker", _unencrypted_passwords,
    ),
    Check(
        "open-store", _H, "May other clients use the coordination store's tree?",
        "restrict it to the brokers' account (docs/stores.md); see parley coordination check", _open_store,
    ),
    Check(
        "plaintext-store", _M, "Do connections to the store lack TLS?",
        "give the store's servers certificates, and coordination.url a ca-file", _plaintext_store,
    ),
    Check(
        "open-metrics", _M, "Can other machines read the metrics without TLS or without a login?",
        "set metrics.listener to an address on 127.0.0.1, or to an https:// address with users in "
        "listener.name.metrics.plain.sasl.jaas.config", _open_metrics,
    ),
)  # fmt: skip

_OF_CERTIFICATES: Final = tuple(each for each in CHECKS if each.find in (_expired, _expiring))
"""The checks that need a broker's certificates, but not its settings."""
