"""ACL bindings: each allows or denies a principal an operation on the resources that match a pattern.

Filters select bindings for DescribeAcls and DeleteAcls. They match like Kafka's ``ResourcePatternFilter`` and
``AccessControlEntryFilter``.
"""

from __future__ import annotations

from enum import IntEnum

from parley.broker.security.acls.hosts import is_range, parse_range
from parley.broker.security.operations import Operation
from parley.broker.security.resources import CLUSTER_NAME, ResourceType
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError

WILDCARD = "*"
"""The name of a literal pattern that matches all names, and the host that matches all hosts."""


class PatternType(IntEnum):
    """Kinds of resource patterns, with their numbers in the ACL APIs. ``ANY`` and ``MATCH`` occur only in filters.

    A filter with ``MATCH`` and a name selects all patterns that match the resource of that name.
    """

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class PermissionType(IntEnum):
    """Kinds of permissions, with their numbers in the ACL APIs. ``ANY`` occurs only in filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True)
class ResourcePattern:
    """A literal name, ``*``, or a prefix of names, of one type of resource."""

    type: ResourceType
    pattern_type: PatternType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name}:{self.pattern_type.name}:{self.name}"


@dataclass(frozen=True, slots=True)
class AclBinding:
    """One ACL. ``principal`` is in Kafka's notation; ``User:*`` means every user."""

    pattern: ResourcePattern
    principal: str
    host: str
    operation: Operation
    permission: PermissionType

    def __str__(self) -> str:
        return f"{self.permission.name} {self.principal} {self.operation.name} on {self.pattern} from host {self.host}"


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects ACL bindings. None and ``ANY`` match everything."""

    type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: PermissionType = PermissionType.ANY

    def matches(self, binding: AclBinding) -> bool:
        """Return True if the filter selects the binding."""
        return (
            self.matches_pattern(binding.pattern)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (Operation.ANY, binding.operation)
            and self.permission in (PermissionType.ANY, binding.permission)
        )

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        """Return True if the filter selects bindings with this pattern."""
        if self.type not in (ResourceType.ANY, pattern.type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None or self.name == pattern.name:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return False
        if pattern.pattern_type is PatternType.LITERAL:
            return pattern.name == WILDCARD
        return self.name.startswith(pattern.name)


def check_binding(binding: AclBinding) -> None:
    """Raise KafkaError (INVALID_REQUEST) if the ACL is invalid."""
    pattern = binding.pattern
    if pattern.type is ResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not pattern.name:
        raise _invalid("Invalid empty resource name")
    if pattern.type is ResourceType.ANY:
        raise _invalid(f"Invalid resourceType {pattern.type.name}")
    if pattern.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {pattern.pattern_type.name}")
    if binding.operation is Operation.ANY:
        raise _invalid(f"Invalid operation {binding.operation.name}")
    if binding.permission is PermissionType.ANY:
        raise _invalid(f"Invalid permissionType {binding.permission.name}")
    if ":" not in binding.principal:
        raise _invalid(
            f"Could not parse principal from `{binding.principal}` "
            "(no colon is present separating the principal type from the principal name)"
        )
    if is_range(binding.host) and parse_range(binding.host) is None:
        raise _invalid(
            f"The host `{binding.host}` is not a range of addresses: write it as 10.0.0.0/8 or 2001:db8::/32"
        )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
