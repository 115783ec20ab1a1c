"""Evaluates whether ACLs allow an operation. The ACLs are indexed, so that a decision looks at only a few of them.

The rules are those of Kafka's authorizer:

* The ACLs of a resource are the ACLs for its literal name, for ``*``, and for every prefix of its name.
* An ACL applies to a request if its principal is the client's or ``User:*``, and its host is the client's address, a
  range that contains it, or ``*``.
* If one applicable ACL is a DENY, the operation is denied. Otherwise it is allowed if one applicable ACL is an ALLOW.
* ALLOW for READ, WRITE, DELETE or ALTER also allows DESCRIBE; ALLOW for ALTER_CONFIGS also allows DESCRIBE_CONFIGS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from functools import cache, lru_cache

from parley.broker.security.acls.bindings import (
    WILDCARD,
    AclBinding,
    AclFilter,
    PatternType,
    PermissionType,
    ResourcePattern,
)
from parley.broker.security.acls.hosts import Range, canonical_host, is_range, parse_address, parse_range
from parley.broker.security.operations import Operation, bit_field
from parley.broker.security.resources import ResourceType
from parley.light_dataclasses import dataclass

ANY_USER = "User:*"

_ALL = bit_field(operation for operation in Operation if operation > Operation.ALL)
_IMPLIED = {
    Operation.READ: Operation.DESCRIBE,
    Operation.WRITE: Operation.DESCRIBE,
    Operation.DELETE: Operation.DESCRIBE,
    Operation.ALTER: Operation.DESCRIBE,
    Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}


class _Rule:
    """One ACL, prepared for decisions: the operations that it covers as a bit field, and its parsed host."""

    __slots__ = ("binding", "covers", "denies", "host", "range")

    def __init__(self, binding: AclBinding) -> None:
        self.binding = binding
        self.denies = binding.permission is PermissionType.DENY
        self.covers = _covered(binding.operation, with_implied=not self.denies)
        self.host, self.range = _parsed_host(binding.host)

    def applies(self, host: str, operation: int) -> bool:
        """Return True if the rule applies to this operation from this host, which must be in canonical form."""
        if not self.covers >> operation & 1:
            return False
        if self.host is None or self.host == host:
            return True
        if self.range is None:
            return False
        address = parse_address(host)
        return address is not None and address.version == self.range.version and address in self.range


@cache
def _covered(operation: Operation, *, with_implied: bool) -> int:
    if operation is Operation.ALL:
        return _ALL
    implied = _IMPLIED.get(operation)
    return bit_field((operation, implied) if with_implied and implied is not None else (operation,))


@lru_cache(maxsize=10_000)
def _parsed_host(host: str) -> tuple[str | None, Range | None]:
    """Return the host in canonical form (None if it matches all hosts), and the range (None if the host is not a
    range)."""
    if host == WILDCARD:
        return None, None
    return canonical_host(host), parse_range(host) if is_range(host) else None


_Rules = dict[AclBinding, _Rule]


@dataclass(slots=True)
class _TypeIndex:
    """The ACLs of one type of resource."""

    literal: dict[str, dict[str, _Rules]] = field(default_factory=dict)
    """The ACLs with literal patterns, by name, then by principal."""
    prefixed: dict[str, dict[str, _Rules]] = field(default_factory=dict)
    """The ACLs with prefixed patterns, by prefix, then by principal."""
    lengths: tuple[int, ...] = ()
    """The lengths of the prefixes, in ascending order."""
    by_principal: dict[str, _Rules] = field(default_factory=dict)
    prefixes_of_length: dict[int, int] = field(default_factory=dict)

    def patterns(self, pattern_type: PatternType) -> dict[str, dict[str, _Rules]]:
        """Return the ACLs with literal or with prefixed patterns."""
        return self.literal if pattern_type is PatternType.LITERAL else self.prefixed

    def matching(self, name: str) -> Iterator[dict[str, _Rules]]:
        """Yield the ACLs of each pattern that matches the name, by principal."""
        found = self.literal.get(name)
        if found is not None:
            yield found
        if name != WILDCARD and (found := self.literal.get(WILDCARD)) is not None:
            yield found
        for length in self.lengths:
            if length > len(name):
                break
            if (found := self.prefixed.get(name[:length])) is not None:
                yield found

    def count_prefix(self, length: int, change: int) -> None:
        """Record that ``change`` prefixes of this length were added (or removed, if negative)."""
        count = self.prefixes_of_length.get(length, 0) + change
        if count:
            self.prefixes_of_length[length] = count
        else:
            del self.prefixes_of_length[length]
        self.lengths = tuple(sorted(self.prefixes_of_length))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a decision. ``rule`` is the ACL that decided, or None if no ACL applied.

    ``has_acls`` is True if the resource has any ACL, for any principal.
    """

    is_allowed: bool
    rule: AclBinding | None
    has_acls: bool


_NO_ACLS = Verdict(False, None, False)
_NONE_APPLIES = Verdict(False, None, True)


class AclIndex:
    """All ACLs of a cluster. Adding or removing one takes constant time."""

    def __init__(self, bindings: Iterable[AclBinding] = ()) -> None:
        self._types: dict[ResourceType, _TypeIndex] = {kind: _TypeIndex() for kind in ResourceType}
        self._count = 0
        for binding in bindings:
            self.add(binding)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[AclBinding]:
        for of_type in self._types.values():
            for rules in of_type.by_principal.values():
                yield from rules

    def add(self, binding: AclBinding) -> None:
        """Add an ACL. Does nothing if the index already contains it."""
        pattern = binding.pattern
        of_type = self._types[pattern.type]
        of_principal = of_type.by_principal.setdefault(binding.principal, {})
        if binding in of_principal:
            return
        of_principal[binding] = rule = _Rule(binding)
        patterns = of_type.patterns(pattern.pattern_type)
        if pattern.name not in patterns:
            patterns[pattern.name] = {}
            if pattern.pattern_type is PatternType.PREFIXED:
                of_type.count_prefix(len(pattern.name), 1)
        patterns[pattern.name].setdefault(binding.principal, {})[binding] = rule
        self._count += 1

    def remove(self, binding: AclBinding) -> None:
        """Remove an ACL. Raises KeyError if the index does not contain it."""
        pattern = binding.pattern
        of_type = self._types[pattern.type]
        del of_type.by_principal[binding.principal][binding]
        if not of_type.by_principal[binding.principal]:
            del of_type.by_principal[binding.principal]
        patterns = of_type.patterns(pattern.pattern_type)
        principals = patterns[pattern.name]
        del principals[binding.principal][binding]
        if not principals[binding.principal]:
            del principals[binding.principal]
        if not principals:
            del patterns[pattern.name]
            if pattern.pattern_type is PatternType.PREFIXED:
                of_type.count_prefix(len(pattern.name), -1)
        self._count -= 1

    def decide(self, principal: str, host: str, operation: Operation, type: ResourceType, name: str) -> Verdict:
        """Decide whether the ACLs allow an operation on the resource ``name``. ``principal`` is in Kafka's notation,
        ``host`` in canonical form."""
        verdict = _NO_ACLS
        allowed: _Rule | None = None
        for principals in self._types[type].matching(name):
            verdict = _NONE_APPLIES
            for identity in (principal, ANY_USER):
                for rule in principals.get(identity, {}).values():
                    if (rule.denies or allowed is None) and rule.applies(host, operation):
                        if rule.denies:
                            return Verdict(False, rule.binding, True)
                        allowed = rule
        return verdict if allowed is None else Verdict(True, allowed.binding, True)

    def allows_any(self, principal: str, host: str, operation: Operation, type: ResourceType) -> bool:
        """Return True if an ALLOW for this operation, on any resource of this type, is not overridden by a DENY
        (KIP-679).

        As in Kafka, one operation does not imply another here. ``principal`` is in Kafka's notation, ``host`` in
        canonical form.
        """
        rules = [
            rule
            for identity in {principal, ANY_USER}
            for rule in self._types[type].by_principal.get(identity, {}).values()
            if rule.binding.operation in (operation, Operation.ALL) and rule.applies(host, operation)
        ]
        denied = {rule.binding.pattern for rule in rules if rule.denies}
        if ResourcePattern(type, PatternType.LITERAL, WILDCARD) in denied:
            return False
        return any(not rule.denies and not _is_overridden(rule.binding.pattern, denied) for rule in rules)

    def candidates(self, wanted: AclFilter) -> list[AclBinding]:
        """Return a superset of the ACLs that a filter selects: only a few if the filter contains a name or a principal,
        otherwise all ACLs of its type. Later changes to the index do not change the list."""
        kinds = tuple(self._types) if wanted.type is ResourceType.ANY else (wanted.type,)
        return [binding for kind in kinds for rules in self._candidates(self._types[kind], wanted) for binding in rules]

    def _candidates(self, of_type: _TypeIndex, wanted: AclFilter) -> Iterable[_Rules]:
        if wanted.principal is not None:
            return (of_type.by_principal.get(wanted.principal, {}),)
        if wanted.name is None:
            return of_type.by_principal.values()
        if wanted.pattern_type is PatternType.MATCH:
            return (rules for found in of_type.matching(wanted.name) for rules in found.values())
        both = (of_type.literal.get(wanted.name, {}), of_type.prefixed.get(wanted.name, {}))
        return (rules for found in both for rules in found.values())


def _is_overridden(allowed: ResourcePattern, denied: set[ResourcePattern]) -> bool:
    """Return True if a DENY covers every resource that an ALLOW for this pattern covers. Only ``*`` overrides ``*``."""
    if allowed.pattern_type is PatternType.LITERAL:
        if allowed.name == WILDCARD:
            return False
        if allowed in denied:
            return True
    prefixes = (allowed.name[:length] for length in range(1, len(allowed.name) + 1))
    return any(ResourcePattern(allowed.type, PatternType.PREFIXED, prefix) in denied for prefix in prefixes)
