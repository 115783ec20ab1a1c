"""Images, the changes between them, and their form in the store."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from parley.broker.controller.stored_metadata import PREFIXES, read_image, writes_for
from parley.broker.metadata.changes import (
    BrokerRegistered,
    Change,
    ConfigReplaced,
    DeletedTopicsReplaced,
    PartitionChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.image import DELETED_TOPICS_KEPT, MetadataImage
from parley.broker.metadata.types import (
    BrokerRegistration,
    ConfigResource,
    Endpoint,
    PartitionState,
    ResourceType,
    TopicImage,
)

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
    directories=st.lists(st.uuids(), max_size=2).map(tuple),
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
    log_dirs=st.lists(st.uuids(), max_size=2).map(tuple),
)
resources = st.builds(ConfigResource, st.sampled_from(ResourceType), st.sampled_from(["", "a", "x/y", "="]))
entries = st.dictionaries(st.sampled_from(["k", "l"]), st.text(max_size=3))


@st.composite
def images(draw: st.DrawFn) -> MetadataImage:
    by_name = {topic.name: topic for topic in draw(st.lists(topics(), max_size=3))}
    changes: list[Change] = [TopicCreated(topic) for topic in by_name.values()]
    changes += [BrokerRegistered(r) for r in draw(st.lists(registrations, max_size=3))]
    changes += [ConfigReplaced(draw(resources), draw(entries)) for _ in range(draw(st.integers(0, 3)))]
    changes.append(DeletedTopicsReplaced(tuple(draw(st.lists(st.uuids(), max_size=3)))))
    return MetadataImage("cluster", controller_id=1, controller_epoch=7).with_changes(changes)


@given(images(), images())
def test_changes_since_leads_from_one_image_to_the_other(one: MetadataImage, other: MetadataImage) -> None:
    reached = one.with_changes(other.changes_since(one))
    assert reached.topics == other.topics
    assert reached.configs == other.configs
    assert reached.brokers == other.brokers
    assert reached.deleted_topics == other.deleted_topics
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
