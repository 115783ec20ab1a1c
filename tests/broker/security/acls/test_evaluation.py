"""The index of ACLs, compared with a model that follows Kafka's rules literally."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parley.broker.security.acls.bindings import (
    AclBinding,
    AclFilter,
    PatternType,
    PermissionType,
    ResourcePattern,
)
from parley.broker.security.acls.evaluation import AclIndex
from parley.broker.security.acls.hosts import canonical_host
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType

NAMES = st.sampled_from(["*", "a", "ab", "abc", "abd", "b", "ba"])
PRINCIPALS = st.sampled_from(["User:*", "User:alice", "User:bob", "Role:alice"])
HOSTS = st.sampled_from(["*", "10.0.0.1", "10.0.0.0/8", "10.1.0.0/16", "::1", "2001:db8::/32", "a-name"])
CLIENTS = st.sampled_from(["10.0.0.1", "10.1.2.3", "11.0.0.1", "::1", "2001:db8::7"])
OPERATIONS = [operation for operation in Operation if operation is not Operation.ANY]
REQUESTED = [operation for operation in OPERATIONS if operation is not Operation.ALL]
TYPES = [ResourceType.TOPIC, ResourceType.GROUP]

PATTERNS = st.builds(
    ResourcePattern, st.sampled_from(TYPES), st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]), NAMES
)
BINDINGS = st.builds(
    AclBinding,
    PATTERNS,
    PRINCIPALS,
    HOSTS,
    st.sampled_from(OPERATIONS),
    st.sampled_from([PermissionType.ALLOW, PermissionType.ALLOW, PermissionType.DENY]),
)
ACLS = st.lists(BINDINGS, max_size=12)

IMPLY_DESCRIBE = {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
IMPLY_DESCRIBE_CONFIGS = {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}


def _pattern_matches(pattern: ResourcePattern, kind: ResourceType, name: str) -> bool:
    if pattern.type is not kind:
        return False
    if pattern.pattern_type is PatternType.LITERAL:
        return pattern.name in ("*", name)
    return name.startswith(pattern.name)


def _host_matches(host: str, client: str) -> bool:
    if host in ("*", client):
        return True
    in_range = {
        "10.0.0.0/8": {"10.0.0.1", "10.1.2.3"},
        "10.1.0.0/16": {"10.1.2.3"},
        "2001:db8::/32": {"2001:db8::7"},
    }
    return client in in_range.get(host, set())


def _applies(acl: AclBinding, principal: str, client: str, operation: Operation) -> bool:
    if acl.principal not in (principal, "User:*") or not _host_matches(acl.host, client):
        return False
    if acl.operation is Operation.ALL or acl.operation is operation:
        return True
    if acl.permission is PermissionType.DENY:
        return False
    if operation is Operation.DESCRIBE:
        return acl.operation in IMPLY_DESCRIBE
    return operation is Operation.DESCRIBE_CONFIGS and acl.operation in IMPLY_DESCRIBE_CONFIGS


@given(
    ACLS,
    PRINCIPALS.filter(lambda p: p != "User:*"),
    CLIENTS,
    st.sampled_from(REQUESTED),
    st.sampled_from(TYPES),
    NAMES.filter(lambda name: name != "*"),
)
def test_decides_as_the_rules_say(
    acls: list[AclBinding], principal: str, client: str, operation: Operation, kind: ResourceType, name: str
) -> None:
    verdict = AclIndex(acls).decide(principal, canonical_host(client), operation, kind, name)
    concerning = [acl for acl in acls if _pattern_matches(acl.pattern, kind, name)]
    applicable = [acl for acl in concerning if _applies(acl, principal, client, operation)]
    denied = any(acl.permission is PermissionType.DENY for acl in applicable)
    assert verdict.is_allowed == (bool(applicable) and not denied)
    assert verdict.has_acls == bool(concerning)
    assert (verdict.rule is None) == (not applicable)
    assert verdict.rule is None or verdict.rule in applicable


@given(st.lists(st.tuples(st.booleans(), BINDINGS), max_size=30))
def test_a_changed_index_equals_a_fresh_one(changes: list[tuple[bool, AclBinding]]) -> None:
    index, present = AclIndex(), set()
    for is_addition, binding in changes:
        if is_addition:
            index.add(binding)
            present.add(binding)
        elif binding in present:
            index.remove(binding)
            present.remove(binding)
    fresh = AclIndex(present)
    assert set(index) == present
    assert len(index) == len(present)
    for kind in TYPES:
        for name in ("a", "abc", "ba"):
            for operation in (Operation.READ, Operation.DESCRIBE):
                ours = index.decide("User:alice", "10.0.0.1", operation, kind, name)
                theirs = fresh.decide("User:alice", "10.0.0.1", operation, kind, name)
                assert (ours.is_allowed, ours.has_acls) == (theirs.is_allowed, theirs.has_acls)


@given(
    ACLS,
    st.builds(
        AclFilter,
        st.sampled_from([ResourceType.ANY, *TYPES]),
        st.sampled_from(PatternType),
        st.none() | NAMES,
        st.none() | PRINCIPALS,
        st.none() | HOSTS,
        st.sampled_from([Operation.ANY, Operation.READ, Operation.ALL]),
        st.sampled_from(PermissionType),
    ),
)
def test_candidates_include_all_acls_that_a_filter_matches(acls: list[AclBinding], wanted: AclFilter) -> None:
    selected = list(filter(wanted.matches, AclIndex(acls).candidates(wanted)))
    assert len(selected) == len(set(selected))
    assert set(selected) == {acl for acl in acls if wanted.matches(acl)}


def _acl(
    kind: PatternType, name: str, permission: PermissionType, operation: Operation = Operation.WRITE
) -> AclBinding:
    return AclBinding(ResourcePattern(ResourceType.TOPIC, kind, name), "User:alice", "*", operation, permission)


LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY


def _allows_any(*acls: AclBinding) -> bool:
    return AclIndex(acls).allows_any("User:alice", "10.0.0.1", Operation.WRITE, ResourceType.TOPIC)


def test_any_resource_needs_an_allow_that_no_deny_overrides() -> None:
    assert not _allows_any()
    assert _allows_any(_acl(LITERAL, "foo", ALLOW))
    assert not _allows_any(_acl(LITERAL, "foo", ALLOW), _acl(LITERAL, "foo", DENY))
    assert not _allows_any(_acl(LITERAL, "foo", ALLOW), _acl(PREFIXED, "f", DENY))
    assert _allows_any(_acl(PREFIXED, "foo", ALLOW), _acl(LITERAL, "foo", DENY))
    assert _allows_any(_acl(PREFIXED, "foo", ALLOW), _acl(PREFIXED, "foobar", DENY))
    assert not _allows_any(_acl(PREFIXED, "foo", ALLOW), _acl(PREFIXED, "foo", DENY))
    assert not _allows_any(_acl(LITERAL, "*", ALLOW), _acl(LITERAL, "*", DENY))
    assert _allows_any(_acl(LITERAL, "*", ALLOW), _acl(PREFIXED, "f", DENY))
    assert not _allows_any(_acl(LITERAL, "foo", ALLOW, Operation.READ))
    assert _allows_any(_acl(LITERAL, "foo", ALLOW, Operation.ALL))


def test_a_filter_matches_as_in_kafka() -> None:
    literal = _acl(LITERAL, "foo", ALLOW)
    wildcard = _acl(LITERAL, "*", ALLOW)
    prefixed = _acl(PREFIXED, "fo", ALLOW)
    index = AclIndex([literal, wildcard, prefixed])

    def selected(kind: PatternType, name: str | None) -> set[AclBinding]:
        wanted = AclFilter(ResourceType.TOPIC, kind, name)
        return set(filter(wanted.matches, index.candidates(wanted)))

    assert selected(PatternType.MATCH, "foo") == {literal, wildcard, prefixed}
    assert selected(PatternType.MATCH, "fop") == {wildcard, prefixed}
    assert selected(PatternType.ANY, "foo") == {literal}
    assert selected(PatternType.ANY, "fo") == {prefixed}
    assert selected(PatternType.LITERAL, "*") == {wildcard}
    assert selected(PatternType.PREFIXED, None) == {prefixed}
    assert selected(PatternType.MATCH, None) == {literal, wildcard, prefixed}
