"""Images, the changes between them, and their form in the store."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.broker.controller.stored_metadata import PREFIXES, read_image, writes_for
from parley.broker.metadata.changes import (
    AclBucketReplaced,
    BrokerRegistered,
    Change,
    ClientQuotasReplaced,
    ClusterSecretSet,
    ConfigReplaced,
    DelegationTokenReplaced,
    DeletedTopicsReplaced,
    FeatureLevelsReplaced,
    PartitionChanged,
    PartitionsAdded,
    ScramUserReplaced,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.feature_levels import FeatureLevels
from parley.broker.metadata.image import DELETED_TOPICS_KEPT, MetadataImage
from parley.broker.metadata.types import (
    NO_LEADER,
    BrokerRegistration,
    ConfigResource,
    Endpoint,
    PartitionState,
    ResourceType,
    TopicImage,
)
from parley.broker.quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from parley.broker.security.acls.bindings import AclBinding, PatternType, PermissionType, ResourcePattern
from parley.broker.security.delegation_tokens.delegation_token import DelegationToken
from parley.broker.security.operations import Operation
from parley.broker.security.principal import user
from parley.broker.security.resources import ResourceType as ResourceKind
from parley.protocol.security.scram import ScramCredential
from parley.protocol.uuids import UUID
from tests.support.uuids import uuids

ALICE = user("alice")
ids = st.integers(0, 5)
states = st.builds(
    PartitionState,
    replicas=st.lists(ids, min_size=1, max_size=3, unique=True).map(tuple),
    isr=st.lists(ids, max_size=3, unique=True).map(tuple),
    leader=ids,
    leader_epoch=ids,
    partition_epoch=ids,
    adding=st.lists(ids, max_size=1).map(tuple),
    elr=st.lists(ids, max_size=1).map(tuple),
    last_known_elr=st.lists(ids, max_size=1).map(tuple),
    directories=st.lists(uuids(), max_size=2).map(tuple),
    unclean_epoch=st.integers(-1, 3),
)
NAMES = ["a", "b", "c", "with.dot"]


@st.composite
def topics(draw: st.DrawFn) -> TopicImage:
    """Two topics of the same name may have the same id. Then only the states of their partitions differ."""
    name = draw(st.sampled_from(NAMES))
    count = draw(st.sampled_from([1, 2, 100, 101]))
    few = draw(st.lists(states, min_size=1, max_size=2))
    topic_id = UUID(int=1_000_000 * (NAMES.index(name) + 1) + 10 * count + draw(st.integers(0, 1)))
    return TopicImage(name, topic_id, tuple(few[i % len(few)] for i in range(count)))


registrations = st.builds(
    BrokerRegistration,
    broker_id=ids,
    epoch=ids,
    incarnation_id=ids.map(lambda i: UUID(int=i)),
    endpoints=st.just((Endpoint("PLAINTEXT", "PLAINTEXT", "h", 1),)),
    rack=st.none() | st.just("r"),
    fenced=st.booleans(),
    features=st.just({"metadata.version": (1, 20)}),
    previous_epoch=st.integers(-1, 2),
    kept_epoch=st.integers(-1, 2),
    log_dirs=st.lists(uuids(), max_size=2).map(tuple),
    inter_broker_listener=st.sampled_from(("", "INTERNAL")),
    host_label=st.sampled_from(("", "m1")),
)
resources = st.builds(ConfigResource, st.sampled_from(ResourceType), st.sampled_from(["", "a", "x/y", "="]))
entries = st.dictionaries(st.sampled_from(["k", "l"]), st.text(max_size=3))


principals = st.sampled_from(["alice", "long " * 60, "a/b", "="]).map(user)
bindings = st.builds(
    AclBinding,
    st.builds(
        ResourcePattern,
        st.sampled_from([ResourceKind.TOPIC, ResourceKind.USER]),
        st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
        st.text(min_size=1, max_size=3),
    ),
    principals.map(str),
    st.sampled_from(["*", "10.0.0.0/8"]),
    st.sampled_from(Operation),
    st.sampled_from(PermissionType),
)
credentials = st.builds(ScramCredential, st.binary(max_size=3), st.integers(1), st.binary(), st.binary())
tokens = st.builds(
    DelegationToken,
    st.just("t"),
    principals,
    principals,
    st.lists(principals, max_size=2).map(tuple),
    st.integers(),
    st.integers(),
    st.integers(),
)
ENTITIES = (
    QuotaEntity(user="alice"),
    QuotaEntity(user=DEFAULT),
    QuotaEntity(user="alice", client_id="a,user=b/é"),
    QuotaEntity(client_id=DEFAULT),
    QuotaEntity(client_id="x" * 300),
    QuotaEntity(ip="::1"),
)
security_changes: st.SearchStrategy[Change] = st.one_of(
    st.builds(AclBucketReplaced, st.integers(0, 2), st.frozensets(bindings, max_size=3)),
    st.builds(
        ScramUserReplaced,
        principals.map(lambda principal: principal.name),
        st.dictionaries(st.sampled_from(["SCRAM-SHA-256", "SCRAM-SHA-512"]), credentials),
    ),
    st.builds(DelegationTokenReplaced, st.just("t"), st.none() | tokens),
    st.builds(
        ClientQuotasReplaced, st.sampled_from(ENTITIES), st.dictionaries(st.sampled_from(QuotaKey), st.floats(1))
    ),
    st.builds(
        FeatureLevelsReplaced,
        st.builds(FeatureLevels, st.integers(1, 5), st.fixed_dictionaries({"transaction.version": st.integers(0, 2)})),
    ),
    st.builds(ClusterSecretSet, st.just("s"), st.binary(min_size=1)),
)


@st.composite
def images(draw: st.DrawFn) -> MetadataImage:
    by_name = {topic.name: topic for topic in draw(st.lists(topics(), max_size=3))}
    changes: list[Change] = [TopicCreated(topic) for topic in by_name.values()]
    changes += [BrokerRegistered(r) for r in draw(st.lists(registrations, max_size=3))]
    changes += [ConfigReplaced(draw(resources), draw(entries)) for _ in range(draw(st.integers(0, 3)))]
    changes.append(DeletedTopicsReplaced(tuple(draw(st.lists(uuids(), max_size=3)))))
    changes += draw(st.lists(security_changes, max_size=4))
    return MetadataImage("cluster", controller_id=1, controller_epoch=7).with_changes(changes)


@given(images(), images())
def test_changes_since_leads_from_one_image_to_the_other(one: MetadataImage, other: MetadataImage) -> None:
    reached = one.with_changes(other.changes_since(one))
    assert reached.topics == other.topics
    assert reached.configs == other.configs
    assert reached.brokers == other.brokers
    assert reached.deleted_topics == other.deleted_topics
    assert _security(reached) == _security(other)
    assert set(reached.topic_names.values()) >= set(other.topics)
    assert other.changes_since(reached) == ()


@given(images(), images())
def test_the_store_holds_the_image(one: MetadataImage, other: MetadataImage) -> None:
    stored: dict[str, bytes] = {}
    empty = MetadataImage("cluster")
    for before, after in ((empty, one), (one, other)):
        changes = after.changes_since(before)
        for key, value in writes_for(changes, after, before).items():
            assert key.startswith(PREFIXES)
            assert not key.endswith("/")
            if value is None:
                stored.pop(key, None)
            else:
                stored[key] = value
        read = read_image("cluster", stored)
        assert (read.topics, read.configs, read.brokers) == (after.topics, after.configs, after.brokers)
        assert read.deleted_topics == after.deleted_topics
        assert _security(read) == _security(after)
        assert read.secrets.items() >= after.secrets.items()


def _security(image: MetadataImage) -> tuple[object, ...]:
    return image.acls, image.scram_users, image.delegation_tokens, image.client_quotas, image.features


def test_older_controllers_cannot_read_metadata_with_acls_quotas_or_levels() -> None:
    """They take the requirement for a configuration of an unknown type, and do not take office."""
    empty = MetadataImage("c")
    after = empty.with_changes([DelegationTokenReplaced("t", DelegationToken("t", ALICE, ALICE, (), 1, 2, 3))])
    writes = writes_for(after.changes_since(empty), after, empty)
    assert next(iter(writes)).startswith("configs/requires/security")
    limited = after.with_changes([ClientQuotasReplaced(ENTITIES[0], {QuotaKey.REQUEST_PERCENTAGE: 50.0})])
    writes = writes_for(limited.changes_since(after), limited, after)
    assert next(iter(writes)).startswith("configs/requires/client-quotas")
    levelled = limited.with_changes([FeatureLevelsReplaced(FeatureLevels(1, {"transaction.version": 1}))])
    writes = writes_for(levelled.changes_since(limited), levelled, limited)
    assert next(iter(writes)).startswith("configs/requires/feature-levels")
    with pytest.raises(ValueError, match="newer Parley version"):
        read_image("c", {"configs/requires/something-new": b"{}"})


def test_partitions_added_are_seen_as_added() -> None:
    state = PartitionState((1,), (1,), 1)
    small = MetadataImage("c").with_changes([TopicCreated(TopicImage("t", UUID(int=1), (state,)))])
    large = small.with_changes([PartitionsAdded("t", (state, state))])
    assert large.changes_since(small) == (PartitionsAdded("t", (state, state)),)
    assert len(large.topics["t"].partitions) == 3


def test_an_image_never_changes() -> None:
    state = PartitionState((1,), (1,), 1)
    topic = TopicImage("t", UUID(int=1), (state, state))
    first = MetadataImage("c").with_changes([TopicCreated(topic)])
    second = first.with_changes([PartitionChanged("t", 1, PartitionState((1,), (1,), -1, 1, 1))])
    third = second.with_changes([TopicDeleted("t", topic.topic_id)])
    assert first.topics["t"] == topic
    assert second.partition("t", 1) == PartitionState((1,), (1,), -1, 1, 1)
    assert second.partition("t", 2) is None
    assert third.partition("t", 0) is None
    assert (first.version, second.version, third.version) == (1, 2, 3)
    assert (second.deleted_topics, third.deleted_topics) == ((), (topic.topic_id,))


def test_only_the_topics_deleted_last_are_remembered() -> None:
    image = MetadataImage("c")
    ids = [UUID(int=i) for i in range(DELETED_TOPICS_KEPT + 2)]
    for topic_id in ids:
        image = image.with_changes([TopicDeleted("t", topic_id)])
    assert image.deleted_topics == tuple(ids[2:])


def test_a_state_without_its_leader_keeps_all_other_fields() -> None:
    directories = (UUID(int=1), UUID(int=2))
    state = PartitionState((1, 2), (1,), 1, 4, 5, (2,), (1,), (3,), (6,), directories, 7)
    assert not any(getattr(state, field.name) == field.default for field in fields(state)), "the fields differ"
    assert state.without_leader() == replace(state, leader=NO_LEADER)
