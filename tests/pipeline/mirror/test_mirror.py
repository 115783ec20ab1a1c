"""A mirror between two real clusters; this process copies its ranges."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from parley.pipeline.client.cluster import Cluster, Connection
from parley.pipeline.client.fetching import TopicPartition as Place
from parley.pipeline.client.sending import ProducerId
from parley.pipeline.mirror import admin, notes
from parley.pipeline.mirror.appending import Appender, Batch, new_producer
from parley.pipeline.mirror.copying import Copied, Range, copy
from parley.pipeline.mirror.internal_records import Checkpoint, OffsetSync, StoredOffset
from parley.pipeline.mirror.rounds import Mirror
from parley.pipeline.mirror.settings import from_mm1, from_mm2
from parley.protocol.records.batch import build
from parley.protocol.records.batch_header import HEADER_SIZE, read_header
from parley.protocol.records.record import Record
from tests.pipeline.mirror.clusters import (
    Row,
    alter,
    as_rows,
    commit,
    committed,
    copy_once,
    create,
    delete_records,
    in_process,
    mirror,
    produce,
    properties,
    read,
    rows,
    settings_of,
)
from tests.pipeline.transactions import abort_transaction, commit_transaction, open_transaction

pytestmark = pytest.mark.slow


def test_records_arrive_as_they_were(a: str, b: str) -> None:
    create(a, "orders", 2)
    produce(a, "orders", rows(500), 0)
    produce(a, "orders", rows(300, 500), 1, **{"compression.type": "lz4"})
    done = copy_once(properties(a, b))
    assert as_rows(read(b, "A.orders", 0)) == rows(500)
    assert as_rows(read(b, "A.orders", 1)) == rows(300, 500)
    (progress,) = done.progress()
    assert (progress.flow, progress.records, progress.lag) == ("A->B", 800, 0)


def test_lag_is_reported_before_it_is_copied(a: str, b: str) -> None:
    create(a, "orders")
    produce(a, "orders", rows(10))
    told: list[tuple[int, int]] = []
    with mirror(properties(a, b)) as running:
        running.copy(running.ends(), lambda: told.extend((one.records, one.lag) for one in running.progress()))
    assert told == [(0, 10), (10, 0)]


def test_nothing_is_copied_twice_however_often_a_mirror_is_killed(a: str, b: str) -> None:
    """A mirror that recorded none of its progress is equivalent to one that was killed."""
    create(a, "orders")
    for first in range(0, 400, 100):
        produce(a, "orders", rows(100, first))
        killed(properties(a, b))
    copy_once(properties(a, b))
    copy_once(properties(a, b))
    assert as_rows(read(b, "A.orders")) == rows(400)


def test_a_mirror_killed_after_many_rounds_counts_all_of_them(a: str, b: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.pipeline.mirror.flow.COPIED_AT_ONCE", 30)
    create(a, "orders")
    large = rows(300, size=50_000)  # more than fits into one fetch response
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
    client = AdminClient({"bootstrap.servers": b})
    assert len(client.list_topics(timeout=30).topics["A.orders"].partitions) == 3
    assert settings_of(b, "A.orders")["retention.ms"] == "5000"
    alter(a, "orders", "retention.ms", "6000")
    source = AdminClient({"bootstrap.servers": a})
    source.create_partitions([NewPartitions("orders", 5)])["orders"].result(30)
    with mirror(properties(a, b)) as running:
        running.flows[0].sync_settings()
    assert settings_of(b, "A.orders")["retention.ms"] == "6000"
    assert len(client.list_topics(timeout=30).topics["A.orders"].partitions) == 5


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
    client = AdminClient({"bootstrap.servers": a})
    place = TopicPartition("orders", 0, 150)
    client.delete_records([place])[place].result(30)
    copy_once(settings)
    assert as_rows(read(b, "A.orders")) == rows(100) + rows(50, 150)


@pytest.mark.parametrize("number", [10, 120])
def test_a_recreated_topic_is_copied_from_its_beginning(a: str, b: str, number: int) -> None:
    """This holds however many records the new topic contains, because its topic id differs."""
    create(a, "orders")
    produce(a, "orders", rows(100))
    settings = properties(a, b)
    copy_once(settings)
    made_anew(a, "orders")
    produce(a, "orders", rows(number, 500))
    copy_once(settings)
    assert as_rows(read(b, "A.orders")) == rows(100) + rows(number, 500)


def test_a_topic_that_is_recreated_while_it_is_copied_is_noticed(a: str, b: str) -> None:
    create(a, "orders")
    produce(a, "orders", rows(10))
    with mirror(properties(a, b)) as running:
        running.copy(running.ends())
        made_anew(a, "orders")
        produce(a, "orders", rows(20, 500))
        running.copy(running.ends())
    assert as_rows(read(b, "A.orders")) == rows(10) + rows(20, 500)


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
    client = AdminClient({"bootstrap.servers": a})
    place = TopicPartition("orders", 0, 4)
    client.delete_records([place])[place].result(30)
    copy_once(properties(a, b))
    syncs = [OffsetSync.decode(one.key(), one.value()) for one in read(a, "mm2-offset-syncs.B.internal")]
    assert syncs == [OffsetSync("orders", 0, 4, 0), OffsetSync("orders", 0, 9, 5)]


def test_names_are_kept_by_the_identity_policy(a: str, b: str) -> None:
    create(a, "orders")
    produce(a, "orders", rows(10))
    identity = {"replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"}
    copy_once(properties(a, b) | identity)
    assert as_rows(read(b, "orders")) == rows(10)


def test_an_application_that_writes_to_the_target_from_its_beginning_is_not_a_mirror(a: str, b: str) -> None:
    """The sequence numbers of an application that was the only writer equal its offsets. It keeps its own producer id
    and loses nothing; neither does the mirror, whenever it is killed."""
    create(a, "orders")
    create(b, "A.orders")
    application = Producer({"bootstrap.servers": b, "enable.idempotence": True, "linger.ms": 5})
    settings = properties(a, b)
    expected = []
    for first in range(0, 40, 10):
        mine = [(b"other", b"%d" % number, 1, ()) for number in range(first, first + 10)]
        for key, value, _, _ in mine:
            application.produce("A.orders", value, key, 0, timestamp=1)
        assert application.flush(30) == 0
        produce(a, "orders", rows(10, first))
        killed(settings)
        expected += mine + rows(10, first)
    copy_once(settings)
    assert as_rows(read(b, "A.orders")) == expected


def test_an_application_that_writes_after_the_kill_is_not_counted(a: str, b: str) -> None:
    create(a, "orders")
    produce(a, "orders", rows(10))
    copy_once(properties(a, b))
    produce(a, "orders", rows(10, 10))
    with Cluster(Connection(bootstrap=b)) as cluster:
        other = Appender(
            cluster, Place("A.orders", 0), new_producer(cluster), 10, 10
        )  # its sequence numbers equal its offsets
        made = build([Record(0, 1, b"other", b"")] * 5)
        assert other.append([Batch(read_header(made), made[HEADER_SIZE:])]) == [10]
    killed(properties(a, b))
    copy_once(properties(a, b))
    found = as_rows(read(b, "A.orders"))
    assert [row for row in found if row[0] != b"other"] == rows(20)


def test_a_producer_id_is_recorded_before_it_is_used(a: str, b: str) -> None:
    create(a, "orders")
    produce(a, "orders", rows(10))
    noted = []

    def looking(ranges: list[Range]) -> list[Copied]:
        with Cluster(Connection(bootstrap=b)) as cluster:
            last = list(admin.read_decoded(cluster, "mm2-offsets.A.internal", StoredOffset.decode))[-1]
        assert last is not None
        noted.append(last.producer)
        assert last.producer == ranges[0].anchor.producer
        return [copy(one) for one in ranges]

    with Mirror(from_mm2(properties(a, b)), looking, now_ms=lambda: 1) as running:
        running.copy(running.ends())
        made_anew(a, "orders")
        produce(a, "orders", rows(10))
        running.copy(running.ends())
    assert len(set(noted)) == 2


def test_progress_of_an_older_version_is_continued(a: str, b: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older version used offsets as sequence numbers, and did not record topic ids."""

    def older(alias: str, partition: Place, place: notes.Place) -> StoredOffset:
        return replace(stored(alias, partition, place), sequence=None, topic_id="")

    stored = notes._stored
    create(a, "orders")
    produce(a, "orders", rows(10))
    with monkeypatch.context() as patched:
        patched.setattr(notes, "_stored", older)
        copy_once(properties(a, b))
        produce(a, "orders", rows(10, 10))
        killed(properties(a, b))
    produce(a, "orders", rows(10, 20))
    copy_once(properties(a, b))
    copy_once(properties(a, b))
    assert as_rows(read(b, "A.orders")) == rows(30)


@pytest.mark.parametrize("more", [0, 5])
def test_records_that_the_target_has_lost_are_copied_again(
    a: str, b: str, more: int, caplog: pytest.LogCaptureFixture
) -> None:
    create(a, "orders")
    produce(a, "orders", rows(10))
    copy_once(properties(a, b))
    made_anew(b, "A.orders")
    produce(b, "A.orders", [(b"other", b"writer", 1, ())])
    produce(a, "orders", rows(more, 10))
    copy_once(properties(a, b))
    assert as_rows(read(b, "A.orders"))[1:] == rows(10 + more)
    assert "A.orders-0 has lost copied records from offset 0 on" in caplog.text


def test_deleted_copies_are_copied_again(a: str, b: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log knows that the next record is not the first of the mirror's producer id, but contains none of its records
    any more."""
    create(a, "orders")
    produce(a, "orders", rows(10))
    killed(properties(a, b))
    delete_records(b, "A.orders", 0, 10)
    produce(a, "orders", rows(10, 10))
    copy_once(properties(a, b))
    assert as_rows(read(b, "A.orders")) == rows(20)
    assert "may be copied twice" in caplog.text


def test_no_batch_is_accepted_after_the_first_was_rejected(a: str, b: str) -> None:
    """A log that does not know a producer id yet accepts any sequence number."""
    create(a, "large", max_message_bytes="3000000")
    create(b, "A.large")
    large: list[Row] = [(None, b"x" * 2_000_000, 1, ())]
    produce(a, "large", large, **{"message.max.bytes": 3_000_000})
    for first in range(3):
        produce(a, "large", rows(1, first, size=10_000))
    settings = properties(a, b) | {"sync.topic.configs.enabled": "false"}
    copy_once(settings)
    assert read(b, "A.large") == []
    alter(b, "A.large", "max.message.bytes", "3000000")
    copy_once(settings)
    assert as_rows(read(b, "A.large")) == large + rows(3, size=10_000)


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


def made_anew(bootstrap: str, topic: str) -> None:
    """Delete a topic, and create another with the same name."""
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.delete_topics([topic])[topic].result(30)
    create(bootstrap, topic)


def killed(settings: dict[str, str]) -> None:
    """Copy all records, and record none of the progress."""
    running = mirror(settings)
    for flow in running.flows:
        flow.prepare()
        running.copy(running.ends())
        flow.close()


def test_two_mirrors_that_begin_at_the_same_moment_are_one(a: str, b: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(a, "orders")
    produce(a, "orders", rows(1000))
    both_there = Barrier(2)

    def together(cluster: Cluster) -> ProducerId:
        both_there.wait()  # neither mirror has noticed that the other has begun
        return new_producer(cluster)

    monkeypatch.setattr("parley.pipeline.mirror.flow.new_producer", together)
    pair = [mirror(properties(a, b)) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        for work in (lambda one: one.flows[0].prepare(), lambda one: one.copy(one.ends())):
            assert len(list(threads.map(work, pair))) == 2
    for one in pair:
        one.flows[0].close()
    assert as_rows(read(b, "A.orders")) == rows(1000)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions_and_the_groups_that_read_them(a: str, b: str, isolation: str) -> None:
    """The mirror is killed after each copy, while a transaction is open on the source."""
    create(a, "orders")
    commit_transaction(a, "orders", rows(10))
    abort_transaction(a, "orders", rows(5, 100))
    last = open_transaction(a, "orders", rows(10, 200))
    produce(a, "orders", rows(10, 1000))
    # Offsets: 0-9 committed, 10 a marker, 11-15 aborted, 16 a marker, 17-26 open, 27-36 plain.
    for group, offset in {"first": 4, "second": 20, "third": 37}.items():
        commit(a, group, {("orders", 0): offset})
    settings = properties(a, b) | {"consumer.isolation.level": isolation, "sync.group.offsets.enabled": "true"}
    aborted = [] if isolation == "read_committed" else rows(5, 100)
    behind = rows(10, 200) + rows(10, 1000)

    def killed() -> int:
        running = mirror(settings)
        running.flows[0].prepare()
        running.copy(running.ends())
        running.flows[0].close()
        return running.progress()[0].lag

    for _ in range(2):
        assert killed() == 0  # records of open transactions do not count as lag
        decided = rows(10) + aborted + ([] if isolation == "read_committed" else behind)
        assert as_rows(read(b, "A.orders")) == decided
    last.commit()
    for _ in range(2):
        killed()
    copy_once(settings)
    assert as_rows(read(b, "A.orders")) == rows(10) + aborted + behind
    found = [committed(b, group, [("A.orders", 0)])[0] for group in ("first", "second", "third")]
    assert found == [4, 10 + len(aborted) + 3, 30 + len(aborted)]


def test_a_mirror_of_new_committed_records_begins_before_an_open_transaction(a: str, b: str) -> None:
    create(a, "orders")
    commit_transaction(a, "orders", rows(5))
    last = open_transaction(a, "orders", rows(10, 200))
    settings = properties(a, b) | {"consumer.isolation.level": "read_committed", "consumer.auto.offset.reset": "latest"}
    copy_once(settings)
    last.commit()
    copy_once(settings)
    assert as_rows(read(b, "A.orders")) == rows(10, 200)
