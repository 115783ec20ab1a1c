"""A mirror between two real clusters, its ranges copied in this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from pipeline.cluster import Cluster
from pipeline.mirror.appending import ProducerId, new_producer
from pipeline.mirror.internal_records import Checkpoint, OffsetSync
from pipeline.mirror.rounds import Mirror
from pipeline.mirror.settings import from_mm1
from tests.pipeline.mirror.clusters import (
    alter,
    as_rows,
    commit,
    committed,
    copy_once,
    create,
    in_process,
    mirror,
    produce,
    properties,
    read,
    rows,
    settings_of,
)


def test_records_arrive_as_they_were(a: str, b: str) -> None:
    create(a, "orders", 2)
    produce(a, "orders", rows(500), 0)
    produce(a, "orders", rows(300, 500), 1, **{"compression.type": "lz4"})
    done = copy_once(properties(a, b))
    assert as_rows(read(b, "A.orders", 0)) == rows(500)
    assert as_rows(read(b, "A.orders", 1)) == rows(300, 500)
    (progress,) = done.progress()
    assert (progress.flow, progress.records, progress.lag) == ("A->B", 800, 0)


def test_nothing_is_copied_twice_however_often_a_mirror_is_killed(a: str, b: str) -> None:
    """A mirror that wrote down nothing of what it copied is as one that was killed."""
    create(a, "orders")
    for first in range(0, 400, 100):
        produce(a, "orders", rows(100, first))
        killed(properties(a, b))
    copy_once(properties(a, b))
    copy_once(properties(a, b))
    assert as_rows(read(b, "A.orders")) == rows(400)


def test_a_mirror_killed_after_many_rounds_counts_all_of_them(a: str, b: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.mirror.flow.COPIED_AT_ONCE", 30)
    create(a, "orders")
    large = rows(300, size=50_000)  # more than one answer to a fetch holds
    produce(a, "orders", large)
    killed(properties(a, b))
    copy_once(properties(a, b))
    assert as_rows(read(b, "A.orders")) == large


def test_two_mirrors_at_work_at_once_copy_everything_once(a: str, b: str) -> None:
    create(a, "orders")
    copy_once(properties(a, b))
    with mirror(properties(a, b)) as one, mirror(properties(a, b)) as other:
        for first in range(0, 2000, 500):
            produce(a, "orders", rows(500, first))
            with ThreadPoolExecutor(2) as both:
                for _ in both.map(lambda each: each.copy(each.ends()), (one, other)):
                    pass
    assert as_rows(read(b, "A.orders")) == rows(2000)


def test_it_goes_on_beside_another_writer(a: str, b: str) -> None:
    create(a, "orders")
    produce(a, "orders", rows(50))
    settings = properties(a, b)
    copy_once(settings)
    produce(b, "A.orders", [(b"other", b"writer", 1, ())])
    for first in (50, 100):
        produce(a, "orders", rows(50, first))
        killed(settings)
        produce(b, "A.orders", [(b"other", b"writer", 1, ())])
    copy_once(settings)
    found = [row for row in as_rows(read(b, "A.orders")) if row[0] != b"other"]
    assert found == rows(150)


def test_two_clusters_that_mirror_each_other_make_no_loop(a: str, b: str) -> None:
    create(a, "t")
    create(b, "t")
    produce(a, "t", rows(10))
    produce(b, "t", rows(10, 100))
    both = properties(a, b) | {"B->A.enabled": "true", "emit.heartbeats.enabled": "true"}
    for _ in range(3):
        copy_once(both)
    assert as_rows(read(a, "B.t")) == rows(10, 100)
    assert as_rows(read(b, "A.t")) == rows(10)
    target = AdminClient({"bootstrap.servers": b})
    names = set(target.list_topics(timeout=30).topics)
    assert {name for name in names if not name.startswith(("mm2-", "__")) and "checkpoints" not in name} == {
        "t", "A.t", "heartbeats", "A.heartbeats",
    }  # fmt: skip


def test_topics_and_settings_are_made_alike(a: str, b: str) -> None:
    create(a, "orders", 3, retention_ms="5000", max_message_bytes="2000000")
    copy_once(properties(a, b))
    admin = AdminClient({"bootstrap.servers": b})
    assert len(admin.list_topics(timeout=30).topics["A.orders"].partitions) == 3
    assert settings_of(b, "A.orders")["retention.ms"] == "5000"
    alter(a, "orders", "retention.ms", "6000")
    source = AdminClient({"bootstrap.servers": a})
    source.create_partitions([NewPartitions("orders", 5)])["orders"].result(30)
    with mirror(properties(a, b)) as running:
        running.flows[0].sync_settings()
    assert settings_of(b, "A.orders")["retention.ms"] == "6000"
    assert len(admin.list_topics(timeout=30).topics["A.orders"].partitions) == 5


def test_new_topics_and_partitions_are_found_while_it_runs(a: str, b: str) -> None:
    with mirror(properties(a, b)) as running:
        create(a, "late")
        produce(a, "late", rows(20))
        running.flows[0].refresh_topics()
        running.copy(running.ends())
    assert as_rows(read(b, "A.late")) == rows(20)


def test_records_that_retention_took_are_passed_over(a: str, b: str) -> None:
    create(a, "orders")
    produce(a, "orders", rows(100))
    settings = properties(a, b)
    copy_once(settings)
    produce(a, "orders", rows(100, 100))
    admin = AdminClient({"bootstrap.servers": a})
    place = TopicPartition("orders", 0, 150)
    admin.delete_records([place])[place].result(30)
    copy_once(settings)
    assert as_rows(read(b, "A.orders")) == rows(100) + rows(50, 150)


def test_a_topic_made_anew_is_copied_from_its_beginning(a: str, b: str) -> None:
    create(a, "orders")
    produce(a, "orders", rows(100))
    settings = properties(a, b)
    copy_once(settings)
    admin = AdminClient({"bootstrap.servers": a})
    admin.delete_topics(["orders"])["orders"].result(30)
    create(a, "orders")
    produce(a, "orders", rows(10, 500))
    copy_once(settings)
    assert as_rows(read(b, "A.orders")) == rows(100) + rows(10, 500)


def test_groups_go_on_where_they_were(a: str, b: str) -> None:
    create(a, "orders", 2)
    produce(a, "orders", rows(100), 0)
    produce(a, "orders", rows(60), 1)
    commit(a, "group", {("orders", 0): 40, ("orders", 1): 60})
    copy_once(properties(a, b) | {"sync.group.offsets.enabled": "true"})
    assert committed(b, "group", [("A.orders", 0), ("A.orders", 1)]) == [40, 60]
    checkpoints = [Checkpoint.decode(one.key(), one.value()) for one in read(b, "A.checkpoints.internal")]
    assert sorted(checkpoints, key=lambda one: one.partition) == [
        Checkpoint("group", "A.orders", 0, 40, 40),
        Checkpoint("group", "A.orders", 1, 60, 60),
    ]


def test_offset_syncs_say_which_record_became_which(a: str, b: str) -> None:
    create(a, "orders")
    produce(a, "orders", rows(10))
    admin = AdminClient({"bootstrap.servers": a})
    place = TopicPartition("orders", 0, 4)
    admin.delete_records([place])[place].result(30)
    copy_once(properties(a, b))
    syncs = [OffsetSync.decode(one.key(), one.value()) for one in read(a, "mm2-offset-syncs.B.internal")]
    assert syncs == [OffsetSync("orders", 0, 4, 0), OffsetSync("orders", 0, 9, 5)]


def test_names_are_kept_by_the_identity_policy(a: str, b: str) -> None:
    create(a, "orders")
    produce(a, "orders", rows(10))
    identity = {"replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"}
    copy_once(properties(a, b) | identity)
    assert as_rows(read(b, "orders")) == rows(10)


def test_the_first_mirrormakers_group_says_how_far_it_is(a: str, b: str) -> None:
    create(a, "orders")
    produce(a, "orders", rows(10))
    commit(a, "mm", {("orders", 0): 4})
    settings = from_mm1([{"bootstrap.servers": a, "group.id": "mm"}], {"bootstrap.servers": b}, "orders")
    with Mirror(settings, in_process, now_ms=lambda: 1) as running:
        running.copy(running.ends())
    assert as_rows(read(b, "orders")) == rows(10)[4:]
    assert committed(a, "mm", [("orders", 0)]) == [10]


def test_a_batch_that_the_target_refuses_stops_only_its_partition(a: str, b: str) -> None:
    create(a, "large", max_message_bytes="3000000")
    create(b, "A.large")
    create(a, "small")
    produce(a, "large", [(None, b"x" * 2_000_000, 1, ())], **{"message.max.bytes": 3_000_000})
    produce(a, "small", rows(10))
    done = copy_once(properties(a, b) | {"sync.topic.configs.enabled": "false"})
    assert as_rows(read(b, "A.small")) == rows(10)
    assert done.progress()[0].lag == 1
    alter(b, "A.large", "max.message.bytes", "3000000")
    copy_once(properties(a, b))
    assert len(read(b, "A.large")) == 1


def killed(settings: dict[str, str]) -> None:
    """Copy what there is, and write down nothing of it."""
    running = mirror(settings)
    for flow in running.flows:
        flow.prepare()
        running.copy(running.ends())
        flow.close()


def made_anew(bootstrap: str, topic: str) -> None:
    """A topic with other records: as a compaction leaves it that took some away."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    create(bootstrap, topic)


def test_a_compaction_after_the_kill_leaves_nothing_out(a: str, b: str) -> None:
    create(a, "orders")
    produce(a, "orders", rows(10))
    killed(properties(a, b))
    made_anew(a, "orders")
    produce(a, "orders", rows(2) + rows(6, 4) + rows(5, 10))
    copy_once(properties(a, b))
    assert as_rows(read(b, "A.orders")) == rows(15)


def test_where_it_was_is_not_known_some_are_copied_again(a: str, b: str) -> None:
    create(a, "orders")
    produce(a, "orders", rows(10))
    killed(properties(a, b))
    made_anew(a, "orders")
    produce(a, "orders", rows(5) + rows(5, 20))
    copy_once(properties(a, b))
    assert as_rows(read(b, "A.orders")) == rows(10) + rows(5) + rows(5, 20)


def test_two_mirrors_that_begin_at_the_same_moment_are_one(a: str, b: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(a, "orders")
    produce(a, "orders", rows(1000))
    both_there = Barrier(2)

    def together(cluster: Cluster) -> ProducerId:
        both_there.wait()  # neither has found that the other has begun
        return new_producer(cluster)

    monkeypatch.setattr("pipeline.mirror.flow.new_producer", together)
    pair = [mirror(properties(a, b)) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        for work in (lambda one: one.flows[0].prepare(), lambda one: one.copy(one.ends())):
            assert len(list(threads.map(work, pair))) == 2
    for one in pair:
        one.flows[0].close()
    assert as_rows(read(b, "A.orders")) == rows(1000)
