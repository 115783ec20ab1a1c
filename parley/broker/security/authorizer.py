"""Authorizers, which decide whether a client may perform an operation.

``AclAuthorizer`` decides by Kafka's rules from the ACLs in the metadata. An operator's own authorizer is a subclass of
``Authorizer`` that ``authorizer.class.name`` names: either an entry point of the group ``parley.authorizers``, or a
class in the form ``package.module.Class``. The broker creates it without arguments, and calls ``configure`` once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from parley.broker.config.plugins import plugin
from parley.broker.metadata.changes import AclBucketReplaced, Delta
from parley.broker.metadata.image import MetadataImage
from parley.broker.security.acls.evaluation import AclIndex
from parley.broker.security.acls.hosts import canonical_host
from parley.broker.security.acls.stored import EMPTY, Bucket
from parley.broker.security.operations import Operation
from parley.broker.security.principal import Principal, parse_super_users
from parley.broker.security.resources import ResourceType
from parley.broker.security.session import ClientSession
from parley.light_dataclasses import dataclass

if TYPE_CHECKING:
    from parley.broker.config import BrokerConfig

ENTRY_POINTS: Final = "parley.authorizers"
CACHED_DECISIONS_MAX: Final = 100_000
"""The maximum number of decisions that are cached until the ACLs change. Beyond it, the broker evicts the decisions
about the oldest client."""
CACHED_PER_CLIENT_MAX: Final = 5_000
"""The maximum number of decisions that are cached for one principal at one address, so that no client evicts the
decisions about other clients."""
CACHED_NAME_MAX: Final = 249
"""The maximum length, in characters, of a name for which decisions are cached. Groups and transactional ids may be far
longer."""

_KEY = "authorizer.class.name"
_ACL_AUTHORIZERS = frozenset(
    {
        "AclAuthorizer",
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "kafka.security.authorizer.AclAuthorizer",
        "kafka.security.auth.SimpleAclAuthorizer",
    }
)


@dataclass(frozen=True, slots=True)
class AuthorizationDecision:
    """Whether an operation is allowed, and the reason for the audit log."""

    is_allowed: bool
    reason: str


class Authorizer(ABC):
    """Decides what clients may do. Its methods are called for every request, so they must neither block nor raise."""

    has_acls = False
    """True if the cluster's ACLs decide. The broker then serves the APIs that list, add and remove ACLs."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        """Read the keys that belong to the authorizer from the broker's properties. An exception prevents the start of
        the broker."""
        return

    @abstractmethod
    def authorize(
        self, client: ClientSession, operation: Operation, type: ResourceType, name: str
    ) -> AuthorizationDecision:
        """Decide whether the client may perform the operation on the resource ``name`` of this type."""

    @abstractmethod
    def authorize_any(self, client: ClientSession, operation: Operation, type: ResourceType) -> AuthorizationDecision:
        """Decide whether the client may perform the operation on at least one resource of the type (KIP-679)."""


_SUPER_USER = AuthorizationDecision(True, "super user")
_NO_ACLS_ALLOWED = AuthorizationDecision(True, "no ACL for the resource, and allow.everyone.if.no.acl.found is true")
_NO_ACLS_DENIED = AuthorizationDecision(False, "no ACL for the resource")
_NONE_APPLIES = AuthorizationDecision(False, "no ACL allows it")
_NOT_READY = AuthorizationDecision(False, "the broker has not received the ACLs yet")
_SOME_ALLOWED = AuthorizationDecision(True, "an ACL allows it for some resource")

_Decisions = dict[tuple[int, int, str], AuthorizationDecision]


class AclAuthorizer(Authorizer):
    """Decides by the ACLs in the metadata, as Kafka's ``StandardAuthorizer`` does.

    Decisions are cached by everything that they depend on: the principal, the address, the operation and the resource.
    A change to the ACLs empties the cache.
    """

    has_acls = True

    def __init__(self, super_users: Iterable[Principal] = (), *, allow_if_no_acl: bool = False) -> None:
        self._super_users = frozenset((user.kind, user.name) for user in super_users)
        self._without_acls = _NO_ACLS_ALLOWED if allow_if_no_acl else _NO_ACLS_DENIED
        self.index = AclIndex()
        self._buckets: dict[int, Bucket] = {}
        self._is_ready = False
        self._decided: dict[tuple[str, str, str], _Decisions] = {}
        self.cached_decisions = 0

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Apply the changes of ACLs in ``delta``. Subscribe this to the metadata. Until the first call, only super
        users are allowed anything."""
        changed = False
        for change in delta.changes:
            if isinstance(change, AclBucketReplaced):
                self._replace(change.number, change.bucket)
                changed = True
        if changed or not self._is_ready:
            self._forget()
        self._is_ready = True

    def _replace(self, number: int, bucket: Bucket) -> None:
        before = self._buckets.get(number, EMPTY)
        for binding in before - bucket:
            self.index.remove(binding)
        for binding in bucket - before:
            self.index.add(binding)
        if bucket:
            self._buckets[number] = bucket
        else:
            self._buckets.pop(number, None)

    def _forget(self) -> None:
        self._decided.clear()
        self.cached_decisions = 0

    def authorize(
        self, client: ClientSession, operation: Operation, type: ResourceType, name: str
    ) -> AuthorizationDecision:
        principal = client.principal
        decided = self._decided.get((principal.kind, principal.name, client.host))
        if decided is not None:
            decision = decided.get((operation, type, name))
            if decision is not None:
                return decision
        decision = self._decide(client, operation, type, name)
        return self._remember(client, (operation, type, name), decision)

    def _decide(
        self, client: ClientSession, operation: Operation, type: ResourceType, name: str
    ) -> AuthorizationDecision:
        principal = client.principal
        if (principal.kind, principal.name) in self._super_users:
            return _SUPER_USER
        if not self._is_ready:
            return _NOT_READY
        verdict = self.index.decide(str(principal), canonical_host(client.host), operation, type, name)
        if verdict.rule is not None:
            return AuthorizationDecision(verdict.is_allowed, str(verdict.rule))
        return _NONE_APPLIES if verdict.has_acls else self._without_acls

    def authorize_any(self, client: ClientSession, operation: Operation, type: ResourceType) -> AuthorizationDecision:
        # As in Kafka: this placeholder name detects super users, and clusters that allow access without ACLs.
        decision = self.authorize(client, operation, type, "hardcode")
        if decision.is_allowed or decision is _NOT_READY:
            return decision
        principal = client.principal
        key = (-operation, int(type), "")
        decided = self._decided.get((principal.kind, principal.name, client.host), {})
        if (known := decided.get(key)) is not None:
            return known
        is_allowed = self.index.allows_any(str(principal), canonical_host(client.host), operation, type)
        return self._remember(client, key, _SOME_ALLOWED if is_allowed else _NONE_APPLIES)

    def _remember(
        self, client: ClientSession, key: tuple[int, int, str], decision: AuthorizationDecision
    ) -> AuthorizationDecision:
        if not self._is_ready or len(key[2]) > CACHED_NAME_MAX:
            return decision
        principal = client.principal
        decided = self._decided.setdefault((principal.kind, principal.name, client.host), {})
        if len(decided) >= CACHED_PER_CLIENT_MAX:
            self.cached_decisions -= len(decided)
            decided.clear()
        decided[key] = decision
        self.cached_decisions += 1
        while self.cached_decisions > CACHED_DECISIONS_MAX:
            self.cached_decisions -= len(self._decided.pop(next(iter(self._decided))))
        return decision


def load_authorizer_of(config: BrokerConfig) -> Authorizer | None:
    """Return the authorizer that a configuration names, or None if it names none. Raises the errors of
    ``load_authorizer``."""
    return load_authorizer(
        config.authorizer_class_name or "",
        super_users=parse_super_users(config.super_users or ""),
        allow_if_no_acl=config.allow_everyone_if_no_acl_found,
        configs=config.given,
    )


def load_authorizer(
    name: str, *, super_users: Iterable[Principal], allow_if_no_acl: bool, configs: Mapping[str, Any]
) -> Authorizer | None:
    """Return the authorizer that ``authorizer.class.name`` names, or None if it is empty: then all operations are
    allowed.

    Raises ConfigError if the class cannot be loaded, and the errors of its ``configure``.
    """
    name = name.strip()
    if not name:
        return None
    if name in _ACL_AUTHORIZERS:
        return AclAuthorizer(super_users, allow_if_no_acl=allow_if_no_acl)
    made: Authorizer = plugin(_KEY, name, Authorizer, ENTRY_POINTS)
    made.configure(configs)
    return made
