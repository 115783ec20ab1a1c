"""Decisions about ACLs: what is added and deleted, and when the cluster does not support them yet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.broker.controller.acls import CHANGES_MAX, create_acls, delete_acls
from parley.broker.controller.brokers import register_broker
from parley.broker.metadata.feature_support import SUPPORTED_FEATURES
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration
from parley.broker.security.acls.bindings import AclBinding, AclFilter, PatternType, PermissionType, ResourcePattern
from parley.broker.security.acls.evaluation import AclIndex
from parley.broker.security.acls.stored import every_acl
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID
from tests.broker.controller.clusters import balanced

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW = PermissionType.ALLOW
NEW = BrokerRegistration(1, 1, UUID(int=1), (), features=SUPPORTED_FEATURES)
OLD = replace(NEW, broker_id=2, features={})
EMPTY = MetadataImage("c", brokers={1: NEW})


def acl(
    name: str = "t",
    principal: str = "User:alice",
    *,
    kind: ResourceType = TOPIC,
    pattern: PatternType = LITERAL,
    host: str = "*",
    operation: Operation = Operation.READ,
    permission: PermissionType = ALLOW,
) -> AclBinding:
    return AclBinding(ResourcePattern(kind, pattern, name), principal, host, operation, permission)


def with_acls(*acls: AclBinding) -> MetadataImage:
    decision = create_acls(EMPTY, acls)
    assert decision.result == [None] * len(acls)
    return EMPTY.with_changes(decision.changes)


def test_an_acl_that_exists_is_no_change() -> None:
    image = with_acls(acl(), acl("u"))
    decision = create_acls(image, [acl(), acl("u"), acl("u")])
    assert decision.result == [None] * 3
    assert decision.changes == ()


@pytest.mark.parametrize(
    "wrong",
    [
        acl(""),
        acl(kind=ResourceType.ANY),
        acl(kind=CLUSTER),
        acl(pattern=PatternType.MATCH),
        acl(operation=Operation.ANY),
        acl(permission=PermissionType.ANY),
        acl(principal="alice"),
        acl(host="10.0.0.0/99"),
    ],
)
def test_an_impossible_acl_is_refused_and_the_others_are_added(wrong: AclBinding) -> None:
    decision = create_acls(EMPTY, [wrong, acl()])
    refused, added = decision.result
    assert added is None
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert set(every_acl(EMPTY.with_changes(decision.changes).acls)) == {acl()}


names, principals = st.sampled_from(["a", "ab", "b", "*"]), st.sampled_from(["User:alice", "User:bob"])
acls = st.builds(
    lambda name, principal, kind, pattern: acl(name, principal, kind=kind, pattern=pattern),
    names,
    principals,
    st.sampled_from([TOPIC, GROUP]),
    st.sampled_from([LITERAL, PREFIXED]),
)
filters = st.builds(
    AclFilter,
    st.sampled_from([ResourceType.ANY, TOPIC, GROUP]),
    st.sampled_from(PatternType),
    st.none() | names,
    st.none() | principals,
)


@given(st.lists(acls, max_size=10), st.lists(filters, max_size=3))
def test_filters_delete_the_acls_that_they_match(present: list[AclBinding], wanted: list[AclFilter]) -> None:
    image = with_acls(*present)
    index = AclIndex(present)
    decision = delete_acls(image, [list(filter(each.matches, index.candidates(each))) for each in wanted])
    for each, outcome in zip(wanted, decision.result, strict=True):
        assert len(outcome.deleted) == len(set(outcome.deleted))
        assert set(outcome.deleted) == {one for one in present if each.matches(one)}
    left = {one for one in present if not any(each.matches(one) for each in wanted)}
    assert set(every_acl(image.with_changes(decision.changes).acls)) == left


def test_one_request_deletes_at_most_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CHANGES_MAX == 10_000, "as in Kafka"
    monkeypatch.setattr("parley.broker.controller.acls.CHANGES_MAX", 2)
    image = with_acls(acl("a"), acl("b")).with_changes(create_acls(EMPTY, [acl("c")]).changes)
    with pytest.raises(KafkaError, match="Cannot remove more than 2"):
        delete_acls(image, [[acl("a"), acl("b")], [acl("b"), acl("c")]])


def test_an_acl_that_another_request_has_deleted_is_not_deleted_again() -> None:
    decision = delete_acls(with_acls(acl("a")), [[acl("a"), acl("b")]])
    assert [outcome.deleted for outcome in decision.result] == [(acl("a"),)]


def test_a_cluster_with_a_broker_that_knows_no_acls_gets_none() -> None:
    image = replace(EMPTY, brokers={1: NEW, 2: OLD})
    with pytest.raises(KafkaError, match=r"these brokers does not support ACLs and users: 2\.") as refused:
        create_acls(image, [acl()])
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_broker_that_knows_no_acls_cannot_join_a_cluster_that_has_some() -> None:
    assert register_broker(EMPTY, OLD, None, balanced).changes
    with pytest.raises(KafkaError, match="Upgrade that broker") as refused:
        register_broker(with_acls(acl()), OLD, None, balanced)
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
