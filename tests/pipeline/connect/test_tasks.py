"""Tasks of a worker, with a broker: what reaches topics and targets, what is committed, and what a failure stops."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from parley import Broker
from parley.pipeline.connect.herder_results import State, TargetState, TaskId
from tests.pipeline.connect.driving import Driven, consume, create, driven, produce, until

ERRORS = "__connect.errors."


@pytest.fixture(scope="module")
def bootstrap(connect_broker: Broker) -> str:
    return connect_broker.bootstrap_servers


@pytest.fixture
def run(bootstrap: str, tmp_path: Path) -> Iterator[Driven]:
    with driven(bootstrap, tmp_path) as worker:
        yield worker


def notes(folder: Path) -> list[list[Any]]:
    """Return the notes of the folder's sinks, in the order of offsets."""
    lines = [line for file in folder.glob("notes-*") for line in file.read_text().splitlines(keepends=True)]
    return sorted(json.loads(line) for line in lines if line.endswith("\n"))


def noted(folder: Path, count: int) -> list[list[Any]]:
    found: list[list[Any]] = until(lambda: notes(folder), lambda found: len(found) >= count)
    return found


def values(folder: Path, count: int) -> list[str]:
    return [one[3] for one in noted(folder, count)]


def ranges(folder: Path) -> dict[tuple[str, int], list[tuple[int, int, list[Any]]]]:
    """Return the ranges that range sinks have written, by partition: start, end and records."""
    found: dict[tuple[str, int], list[tuple[int, int, list[Any]]]] = {}
    for file in folder.glob("*.range"):
        topic, partition, start, end = file.stem.split("+")
        found.setdefault((topic, int(partition)), []).append((int(start), int(end), json.loads(file.read_text())))
    return {one: sorted(written) for one, written in found.items()}


def test_a_source_fills_a_topic_and_a_sink_empties_it(run: Driven, bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, "flow", 3)
    run.run("numbers", "Counter", topic="flow", count=100, tasks_max=2)
    run.run("notes", "Notes", topics="flow", folder=tmp_path, tasks_max=2)
    expected = sorted(f"{counter}-{number}" for counter in range(2) for number in range(100))
    assert sorted(values(tmp_path, 200)) == expected
    until(lambda: sum(offset["kafka_offset"] for _, offset in run.offsets("notes")), lambda found: found == 200)
    until(lambda: run.offsets("numbers"), lambda found: [one[1] for one in found] == [{"next": 100}] * 2)
    assert {topic for _, topic in run.told.topics} == {"flow"}


def test_sources_and_sinks_go_on_where_they_were(bootstrap: str, tmp_path: Path) -> None:
    for count in (50, 90):
        with driven(bootstrap, tmp_path) as worker:
            worker.run("goes-on", "Counter", topic="goes-on", count=count)
            worker.run("goes-on-notes", "Notes", topics="goes-on", folder=tmp_path)
            noted(tmp_path, count)
    assert sorted(values(tmp_path, 90)) == sorted(f"0-{number}" for number in range(90))
    assert len(consume(bootstrap, "goes-on", 90)) == 90


def test_a_task_that_fails_stops_no_other_and_can_be_started_again(run: Driven, bootstrap: str, tmp_path: Path) -> None:
    repaired = tmp_path / "repaired"
    create(bootstrap, "fails")
    run.run("fails", "Counter", topic="fails", count=40, tasks_max=2, fail_at=20, repaired=repaired)
    run.run("lives", "Counter", topic="lives", count=40)
    run.run("lives-notes", "Notes", topics="lives", folder=tmp_path)
    for task in (TaskId("fails", 0), TaskId("fails", 1)):
        trace = run.told.wait(task, State.FAILED)
        assert trace is not None
        assert "ValueError: cannot count beyond 20" in trace
    noted(tmp_path, 40)
    run.told.wait(TaskId("lives", 0), State.RUNNING)
    repaired.touch()
    run.restart(TaskId("fails", 1))
    run.told.wait(TaskId("fails", 1), State.RUNNING)
    got = [one.value().decode() for one in consume(bootstrap, "fails", 60)]
    assert sorted(got) == sorted([f"0-{number}" for number in range(20)] + [f"1-{number}" for number in range(40)])
    assert run.told.states[TaskId("fails", 0)] is State.FAILED


def test_a_sink_that_raises_commits_the_records_that_it_put(run: Driven, bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, "raises")
    produce(bootstrap, "raises", ["a", "b"])
    run.run("raises", "Notes", topics="raises", folder=tmp_path)
    noted(tmp_path, 2)
    produce(bootstrap, "raises", ["raise", "c"])
    run.told.wait(TaskId("raises", 0), State.FAILED)
    until(lambda: run.offsets("raises"), lambda found: found and found[0][1] == {"kafka_offset": 2})


def test_a_task_that_is_stuck_holds_up_no_other_and_is_abandoned(bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, "stuck")
    produce(bootstrap, "stuck", ["wait"])
    with driven(bootstrap, tmp_path, task_shutdown_graceful_timeout_ms="100") as worker:
        (stuck,) = worker.run("stuck", "Notes", topics="stuck", folder=tmp_path)
        worker.told.wait(stuck, State.RUNNING)
        worker.run("moves", "Counter", topic="moves", count=20)
        worker.run("moves-notes", "Notes", topics="moves", folder=tmp_path)
        noted(tmp_path, 20)
        worker.worker.stop_tasks([stuck])
        (tmp_path / "repaired").touch()
        worker.start(stuck)
        until(lambda: worker.offsets("stuck"), lambda found: found and found[0][1] == {"kafka_offset": 1})


def test_an_abandoned_task_commits_nothing_that_was_reset_meanwhile(bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, "reset")
    produce(bootstrap, "reset", ["wait"])
    with driven(bootstrap, tmp_path, task_shutdown_graceful_timeout_ms="100") as worker:
        (stuck,) = worker.run("reset", "Notes", topics="reset", folder=tmp_path)
        worker.told.wait(stuck, State.RUNNING)
        until(lambda: list(tmp_path.glob("waits")), bool)
        worker.worker.stop_tasks([stuck])
        config = {"connector.class": "tests.pipeline.connect.sample.Notes", "name": "reset"}
        worker.worker.alter_offsets("reset", config, None)
        (tmp_path / "repaired").touch()
        until(lambda: [one for one in threading.enumerate() if one.name == f"task {stuck}"], lambda left: not left)
        assert worker.offsets("reset") == []


def test_connections_end_with_the_last_task_that_uses_them(bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, "ends")
    produce(bootstrap, "ends", ["a"])

    def connections() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name.startswith(("cluster", "connect feed"))}

    with driven(bootstrap, tmp_path) as worker:
        before = connections()  # some belong to earlier tests, and may yet end
        for number in range(3):
            client = {"consumer_override_client_id": f"of-{number}", "producer_override_client_id": f"of-{number}"}
            tasks = worker.run(f"ends-{number}", "Notes", topics="ends", folder=tmp_path, **client)
            noted(tmp_path, number + 1)
            worker.worker.stop_tasks(tasks)
        until(lambda: connections() - before, lambda left: not left)


def test_a_put_that_may_succeed_later_is_called_again(run: Driven, bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, "later")
    produce(bootstrap, "later", ["a", "later", "b"])
    run.run("later", "Notes", topics="later", folder=tmp_path)
    run.told.wait(TaskId("later", 0), State.RUNNING)
    assert notes(tmp_path) == []
    (tmp_path / "repaired").touch()
    assert values(tmp_path, 3) == ["a", "later", "b"]


def test_paused_tasks_do_nothing_until_they_go_on(run: Driven, bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, "paused")
    run.run("paused", "Notes", topics="paused", folder=tmp_path)
    task = TaskId("paused", 0)
    run.told.wait(task, State.RUNNING)
    run.worker.set_target_state("paused", TargetState.PAUSED)
    run.told.wait(task, State.PAUSED)
    produce(bootstrap, "paused", ["a"])
    run.worker.set_target_state("paused", TargetState.STARTED)
    run.told.wait(task, State.RUNNING)
    assert values(tmp_path, 1) == ["a"]
    run.worker.stop_tasks([task])
    run.start(task, TargetState.PAUSED)
    run.told.wait(task, State.PAUSED)


def test_partitions_are_shared_and_added_ones_are_found(run: Driven, bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, "grows.a", 2)
    run.run(
        "grows",
        "Notes",
        topics_regex="grows[.].*",
        folder=tmp_path,
        tasks_max=2,
        consumer_override_metadata_max_age_ms=50,
    )
    for partition in range(2):
        produce(bootstrap, "grows.a", ["old"], partition=partition)
    noted(tmp_path, 2)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions("grows.a", 5)])["grows.a"].result()
    create(bootstrap, "grows.b")
    for partition in range(5):
        produce(bootstrap, "grows.a", ["new"], partition=partition)
    produce(bootstrap, "grows.b", ["other"])
    found = noted(tmp_path, 8)
    assert sorted((one[0], one[1], one[3]) for one in found) == sorted(
        [("grows.a", 0, "old"), ("grows.a", 1, "old"), ("grows.b", 0, "other")]
        + [("grows.a", partition, "new") for partition in range(5)]
    )
    assert len(list(tmp_path.glob("notes-*"))) == 2


@pytest.mark.parametrize("tolerance", ["none", "all"])
def test_records_that_cannot_be_converted(run: Driven, bootstrap: str, tmp_path: Path, tolerance: str) -> None:
    topic, dead = f"bad-{tolerance}", f"bad-{tolerance}-dead"
    create(bootstrap, topic)
    produce(bootstrap, topic, ['"a"'])
    produce(bootstrap, topic, ["{"], key=b"k", headers=[("h", b"v")])
    produce(bootstrap, topic, ['"b"'])
    run.run(
        topic,
        "Notes",
        topics=topic,
        folder=tmp_path,
        value_converter="org.apache.kafka.connect.json.JsonConverter",
        value_converter_schemas_enable="false",
        errors_tolerance=tolerance,
        errors_deadletterqueue_topic_name=dead,
        errors_deadletterqueue_topic_replication_factor=1,
        errors_deadletterqueue_context_headers_enable="true",
    )
    if tolerance == "none":
        trace = run.told.wait(TaskId(topic, 0), State.FAILED)
        assert trace is not None
        assert "Tolerance exceeded in error handler" in trace
        return
    assert values(tmp_path, 2) == ["a", "b"]
    letter = consume(bootstrap, dead, 1)[0]
    headers = dict(letter.headers())
    assert (letter.key(), letter.value(), headers["h"]) == (b"k", b"{", b"v")
    said = {name.removeprefix(ERRORS): value.decode() for name, value in headers.items() if name.startswith(ERRORS)}
    assert said.pop("exception.stacktrace").startswith("Traceback")
    assert "JSON" in said.pop("exception.message")
    assert said == {
        "topic": topic,
        "partition": "0",
        "offset": "1",
        "connector.name": topic,
        "task.id": "0",
        "stage": "VALUE_CONVERTER",
        "class.name": "org.apache.kafka.connect.json.JsonConverter",
        "exception.class.name": "org.apache.kafka.connect.errors.DataException",
    }


def test_records_that_a_task_cannot_write_go_to_the_dead_letters(run: Driven, bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, "errant")
    produce(bootstrap, "errant", ["a", "errant", "b"])
    run.run(
        "errant",
        "Notes",
        topics="errant",
        folder=tmp_path,
        errors_tolerance="all",
        errors_deadletterqueue_topic_name="errant-dead",
        errors_deadletterqueue_topic_replication_factor=1,
    )
    assert values(tmp_path, 2) == ["a", "b"]
    assert [one.value() for one in consume(bootstrap, "errant-dead", 1)] == [b"errant"]


def test_transforms_with_predicates(run: Driven, bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, "changed")
    produce(bootstrap, "changed", ["a", None, "b"])
    run.run(
        "changed",
        "Notes",
        topics="changed",
        folder=tmp_path,
        transforms="route,drop",
        transforms_route_type="org.apache.kafka.connect.transforms.RegexRouter",
        transforms_route_regex="(.*)",
        transforms_route_replacement="new-$1",
        transforms_drop_type="Filter",
        transforms_drop_predicate="empty",
        predicates="empty",
        predicates_empty_type="RecordIsTombstone",
    )
    assert noted(tmp_path, 2) == [["new-changed", 0, 0, "a"], ["new-changed", 0, 2, "b"]]
    until(lambda: run.offsets("changed"), lambda found: found and found[0][1] == {"kafka_offset": 3})


def test_ranges_are_written_once_for_any_committed_offsets(run: Driven, bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, "once")
    produce(bootstrap, "once", [str(number) for number in range(25)])
    (task,) = run.run("once", "Ranges", topics="once", folder=tmp_path, records=10)
    until(lambda: ranges(tmp_path).get(("once", 0), []), lambda found: found and found[-1][1] == 25)
    # The task dies after the range is in the target, so the group's offset excludes it.
    produce(bootstrap, "once", ["raise after"])
    run.told.wait(task, State.FAILED)
    (tmp_path / "repaired").touch()
    run.restart(task)
    produce(bootstrap, "once", ["last"])
    written = until(lambda: ranges(tmp_path)[("once", 0)], lambda found: found[-1][1] == 27)
    assert [one[0] for one in written] == [0] + [one[1] for one in written[:-1]]
    assert [value for _, _, records in written for _, value in records] == [
        *map(str, range(25)), "raise after", "last"
    ]  # fmt: skip


def test_small_ranges_are_gathered(run: Driven, bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, "gathered", 2)
    run.run("gathered", "Ranges", topics="gathered", folder=tmp_path, records=10, ms=60_000)
    for number in range(23):
        produce(bootstrap, "gathered", [str(number)], partition=number % 2)
    written = until(lambda: ranges(tmp_path), lambda found: len(found) == 2)
    assert {place: [one[:2] for one in files] for place, files in written.items()} == {
        ("gathered", 0): [(0, 10)],
        ("gathered", 1): [(0, 10)],
    }


def test_offsets_are_altered_and_forgotten_from_outside(run: Driven, bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, "altered")
    produce(bootstrap, "altered", ["a", "b", "c"])
    (task,) = run.run("altered", "Notes", topics="altered", folder=tmp_path)
    until(lambda: run.offsets("altered"), lambda found: found and found[0][1] == {"kafka_offset": 3})
    run.worker.stop_tasks([task])
    config = {"connector.class": "tests.pipeline.connect.sample.Notes", "name": "altered"}
    place = {"kafka_topic": "altered", "kafka_partition": 0}
    said = run.worker.alter_offsets("altered", config, [(place, {"kafka_offset": 2})])
    assert "altered successfully" in said
    assert run.offsets("altered") == [(place, {"kafka_offset": 2})]
    run.start(task)
    assert values(tmp_path, 4) == ["a", "b", "c", "c"]
    run.worker.stop_tasks([task])
    assert "reset successfully" in run.worker.alter_offsets("altered", config, None)
    assert run.offsets("altered") == []


def test_a_truncated_topic_is_read_on_from_where_it_begins(run: Driven, bootstrap: str, tmp_path: Path) -> None:
    from confluent_kafka import TopicPartition

    create(bootstrap, "cut")
    produce(bootstrap, "cut", ["a", "b", "c", "d"])
    (task,) = run.run("cut", "Notes", topics="cut", folder=tmp_path)
    noted(tmp_path, 4)
    run.worker.stop_tasks([task])
    produce(bootstrap, "cut", ["e", "f"])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for one in admin.delete_records([TopicPartition("cut", 0, 5)]).values():
        one.result()
    run.start(task)
    assert values(tmp_path, 5) == ["a", "b", "c", "d", "f"]


def test_secrets_are_named_and_reach_only_the_code_that_needs_them(bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, "secret")
    produce(bootstrap, "secret", ["a"])
    (tmp_path / "secrets").write_text(f"# where notes are\nfolder={tmp_path}\n")
    provider = "org.apache.kafka.common.config.provider.FileConfigProvider"
    named = f"${{file:{tmp_path}/secrets:folder}}"
    with driven(bootstrap, tmp_path, config_providers="file", config_providers_file_class=provider) as worker:
        worker.run("secret", "Notes", topics="secret", folder=named)
        assert values(tmp_path, 1) == ["a"]
        assert worker.worker.task_configs("secret")[0]["folder"] == named
        config = {"name": "secret", "connector.class": "tests.pipeline.connect.sample.Notes", "topics": "secret"}
        infos = worker.worker.validate(config["connector.class"], {**config, "folder": named})
        assert infos.error_count == 0
        assert [one.value.value for one in infos.configs if one.value.name == "folder"] == [named]
        absent = f"${{file:{tmp_path}/secrets:absent}}"
        worker.worker.start_connector("absent", {**config, "folder": absent}, TargetState.STARTED)
        assert "there is no such key" in str(worker.told.wait("absent", State.FAILED))


@pytest.mark.parametrize("tolerance", ["none", "all"])
def test_a_batch_that_is_corrupt_on_disk(tmp_path: Path, tolerance: str) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    with Broker(data_dir=tmp_path / "data") as broker:
        create(broker.bootstrap_servers, "corrupt")
        for value in ("first", "hurt", "last"):
            produce(broker.bootstrap_servers, "corrupt", [value])
        log = tmp_path / "data" / "corrupt-0" / f"{0:020}.log"
        content = log.read_bytes()
        log.write_bytes(content.replace(b"hurt", b"hxrt"))
        with driven(broker.bootstrap_servers, folder) as worker:
            worker.run("corrupt", "Notes", topics="corrupt", folder=folder, errors_tolerance=tolerance)
            if tolerance == "none":
                assert "offset 1" in str(worker.told.wait(TaskId("corrupt", 0), State.FAILED))
            else:
                assert values(folder, 2) == ["first", "last"]
