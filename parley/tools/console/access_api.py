"""The console's API for users, ACLs and quotas. It also shows which ACLs allow or deny a user an operation."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from starlette.exceptions import HTTPException

from parley.broker.security.acls.bindings import (
    WILDCARD,
    AclBinding,
    AclFilter,
    PatternType,
    PermissionType,
    ResourcePattern,
    check_binding,
)
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode
from parley.tools.cli import acls, client_quotas, scram_users
from parley.tools.console.answers import ApiRequest, matching, page, text_of
from parley.tools.console.cluster_view import ClusterView

_E = TypeVar("_E", bound=Enum)

_IMPLIED = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
"""For each operation, the operations whose permission includes it."""


async def users(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Return a page of the users with SCRAM credentials, and their mechanisms. Query: search, page, size."""
    found = [
        {"user": user, "mechanisms": sorted(mechanisms)}
        for user, mechanisms in (await scram_users.describe(view.client, None)).items()
    ]
    return page(request, matching(request, found, lambda one: str(one["user"])), lambda one: one)


async def set_user(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Set a user's password, or remove it if ``remove`` is true. Body: user, mechanism (SCRAM-SHA-512 by default),
    password, remove. Raises HTTPException (400) for a wrong body, and CommandError if the cluster rejects the
    change."""
    body = await request.object()
    user, mechanism = text_of(body, "user"), text_of(body, "mechanism", "SCRAM-SHA-512")
    if mechanism not in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        raise HTTPException(400, "mechanism must be SCRAM-SHA-256 or SCRAM-SHA-512")
    is_removal = body.get("remove") is True
    added = {} if is_removal else {mechanism: f"password={text_of(body, 'password')}"}
    wanted = scram_users.alterations(user, added, [mechanism] if is_removal else [])
    await scram_users.alter(view.client, wanted)
    return {"user": user}


async def list_acls(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Return a page of the ACLs, and whether the cluster has an authorizer. Query: search, page, size."""
    answer = await acls.describe(view.client, AclFilter())
    has_authorizer = answer.error_code != ErrorCode.SECURITY_DISABLED
    found = matching(request, acls.bindings_of(answer) if has_authorizer else [], str)
    return page(request, sorted(found, key=str), _acl_data) | {"hasAuthorizer": has_authorizer}


def _acl_data(one: AclBinding) -> dict[str, Any]:
    return {
        "resourceType": one.pattern.type.name,
        "patternType": one.pattern.pattern_type.name,
        "name": one.pattern.name,
        "principal": one.principal,
        "host": one.host,
        "operation": one.operation.name,
        "permission": one.permission.name,
    }


async def add_acl(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Add an ACL, and return it. Body: resourceType, patternType (LITERAL by default), name, principal, host (``*`` by
    default), operation, permission (ALLOW by default)."""
    binding = _binding(await request.object())
    check_binding(binding)
    await acls.create(view.client, [binding])
    return _acl_data(binding)


async def remove_acl(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Remove the ACL that the body describes, and return it. Does nothing if there is no such ACL. Body: as for
    ``add_acl``."""
    one = _binding(await request.object())
    exact = AclFilter(
        one.pattern.type, one.pattern.pattern_type, one.pattern.name, one.principal, one.host, one.operation,
        one.permission,
    )  # fmt: skip
    await acls.delete(view.client, [exact])
    return _acl_data(one)


def _binding(body: dict[str, Any]) -> AclBinding:
    return AclBinding(
        ResourcePattern(
            _member(ResourceType, "resourceType", text_of(body, "resourceType")),
            _member(PatternType, "patternType", text_of(body, "patternType", "LITERAL")),
            text_of(body, "name"),
        ),
        text_of(body, "principal"),
        text_of(body, "host", "*"),
        _member(Operation, "operation", text_of(body, "operation")),
        _member(PermissionType, "permission", text_of(body, "permission", "ALLOW")),
    )


def _member(kind: type[_E], field: str, name: str) -> _E:
    """Return the member of an enum with this name. Raises HTTPException (400), which names ``field``, if there is
    none."""
    try:
        return kind[name]
    except KeyError:
        allowed = ", ".join(each.name for each in kind)
        raise HTTPException(400, f"{field}: unknown value {name!r}; allowed: {allowed}") from None


async def why(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Return whether a user may do an operation, why, and the ACLs behind that. Query: principal, operation,
    resourceType, name. Raises HTTPException (400) for an unknown operation or resource type, and CommandError if the
    ACLs cannot be listed."""
    query = request.query_params
    operation = _member(Operation, "operation", query.get("operation", ""))
    kind = _member(ResourceType, "resourceType", query.get("resourceType", ""))
    principal, name = query.get("principal", ""), query.get("name", "")
    found = await acls.select(view.client, AclFilter(kind, PatternType.MATCH, name))
    decided = decide([one for one in found if one.principal in (principal, "User:*")], operation)
    verb = "may" if decided[0] else "may not"
    return {
        "allowed": decided[0],
        "sentence": f"{principal} {verb} {operation.name} {kind.name} {name}: {decided[1]}",
        "acls": [_acl_data(one) for one in decided[2]],
    }


def decide(applying: list[AclBinding], operation: Operation) -> tuple[bool, str, list[AclBinding]]:
    """Decide whether an operation is allowed, as Kafka's authorizer does: a DENY takes precedence over an ALLOW, and
    without either the operation is denied. ``applying`` are the ACLs for the principal and the resource, with any
    operation.

    Returns the decision, the reason, and the ACLs behind it. Ignores super users, and counts every ACL whatever its
    host.
    """
    denied = [
        one for one in applying if one.permission is PermissionType.DENY and one.operation in (operation, Operation.ALL)
    ]
    if denied:
        return False, "an ACL denies it, and a denial overrides everything that is allowed.", denied
    sufficient = {operation, Operation.ALL, *_IMPLIED.get(operation, ())}
    allowed = [one for one in applying if one.permission is PermissionType.ALLOW and one.operation in sufficient]
    if allowed:
        implied = all(one.operation not in (operation, Operation.ALL) for one in allowed)
        reason = f"{allowed[0].operation.name} implies it." if implied else "it is allowed."
        if all(one.host != WILDCARD for one in allowed):
            reason = f"{reason[:-1]}, from some hosts only."
        return True, reason, allowed
    return (
        False,
        "no ACL allows it. Only super users may (super.users), or all users if there are no ACLs of "
        "the resource and allow.everyone.if.no.acl.found is set.",
        [],
    )


async def quotas(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Return a page of the quotas of users, client ids and addresses. Query: search, page, size."""
    entities: list[tuple[Any, Mapping[str, float]]] = []
    for kinds in (("user",), ("client-id",), ("user", "client-id"), ("ip",)):
        for wanted in _kinds_with_defaults(kinds):
            entities += (await client_quotas.describe(view.client, wanted)).items()
    items = [
        {"entity": [{"type": kind, "name": name} for kind, name in parts], "quotas": dict(values)}
        for parts, values in dict(entities).items()
    ]
    return page(request, matching(request, items, str), lambda one: one)


def _kinds_with_defaults(kinds: tuple[str, ...]) -> list[tuple[tuple[str, str | None], ...]]:
    return [tuple((kind, None) for kind in kinds)]


async def set_quota(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Set and remove quotas of an entity. Body: entity, a list of {type, name} in which name "" is the default; quotas,
    an object of numbers, or null to remove a quota. Raises HTTPException (400) for a wrong body, and CommandError if a
    quota to be removed does not exist or the cluster rejects the change."""
    body = await request.object()
    entity, wanted = body.get("entity"), body.get("quotas")
    if not isinstance(entity, list) or not isinstance(wanted, dict) or not entity:
        raise HTTPException(400, "entity must be a list of {type, name}, and quotas an object of numbers")
    parts = tuple((text_of(one, "type"), text_of(one, "name")) for one in entity if isinstance(one, dict))
    if not all(
        each is None or (isinstance(each, int | float) and not isinstance(each, bool)) for each in wanted.values()
    ):
        raise HTTPException(400, "a quota must be a number, or null to remove it")
    await client_quotas.alter(view.client, parts, wanted)
    return {"entity": entity}
