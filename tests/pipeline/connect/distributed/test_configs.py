"""The records of the config topic, as Kafka Connect 4.3.1 writes them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from parley.pipeline.connect.distributed.configs import Change, Changed, ConfigState, ConfigStore, SessionKey
from parley.pipeline.connect.distributed.log import Keyed, MemoryLog
from parley.pipeline.connect.herder_results import TargetState, TaskId


def applied(*records: tuple[str, Any], state: ConfigState | None = None) -> tuple[ConfigState, list[Changed | None]]:
    """Return the state after these records, and the changes by each. A value is written as JSON; text
    stays as it is."""
    state = ConfigState() if state is None else state
    changes = []
    for key, value in records:
        data = value if isinstance(value, str) else None if value is None else json.dumps(value)
        record = Keyed(max(state.offset, 0), key.encode(), None if data is None else data.encode())
        changes.append(state.apply(record))
    return state, changes


SRC = {"connector.class": "FileStreamSource", "name": "src"}


def test_a_connector_and_its_tasks() -> None:
    state, changes = applied(
        ("connector-src", {"properties": SRC}),
        ("task-src-0", {"properties": {"a": "0"}}),
        ("task-src-1", {"properties": {"a": "1"}}),
        ("commit-src", {"tasks": 2}),
    )
    assert changes == [Changed(Change.CONNECTOR, "src"), None, None, Changed(Change.TASKS, "src")]
    assert state.offset == 4
    assert state.connectors == {"src": SRC}
    assert state.task_ids("src") == [TaskId("src", 0), TaskId("src", 1)]
    assert state.task_config(TaskId("src", 1)) == {"a": "1"}
    assert state.task_config(TaskId("src", 2)) is None


def test_tasks_count_from_their_commit_on() -> None:
    state, _ = applied(("task-src-0", {"properties": {"a": "0"}}), ("commit-src", {"tasks": 1}))
    applied(("task-src-0", {"properties": {"a": "new"}}), state=state)
    assert state.task_config(TaskId("src", 0)) == {"a": "0"}
    applied(("commit-src", {"tasks": 1}), state=state)
    assert state.task_config(TaskId("src", 0)) == {"a": "new"}
    applied(("commit-src", {"tasks": 0}), state=state)
    assert state.task_ids("src") == []


def test_a_commit_without_its_tasks_does_not_count() -> None:
    state, changes = applied(("task-src-1", {"properties": {}}), ("commit-src", {"tasks": 2}))
    assert changes == [None, None]
    assert state.task_ids("src") == []
    assert state.inconsistent == {"src"}


def test_names_may_look_like_numbers_and_prefixes() -> None:
    state, _ = applied(
        ("connector-task-a-1", {"properties": {"name": "task-a-1"}}),
        ("task-task-a-1-0", {"properties": {"b": "c"}}),
        ("commit-task-a-1", {"tasks": 1}),
    )
    assert list(state.connectors) == ["task-a-1"]
    assert state.task_config(TaskId("task-a-1", 0)) == {"b": "c"}


@pytest.mark.parametrize(
    ("value", "target"),
    [
        ({"state": "PAUSED", "state.v2": "STOPPED"}, TargetState.STOPPED),
        ({"state": "PAUSED", "state.v2": "PAUSED"}, TargetState.PAUSED),
        ({"state": "PAUSED"}, TargetState.PAUSED),
        ({"state": "STARTED", "state.v2": "STARTED"}, TargetState.STARTED),
        (None, TargetState.STARTED),
    ],
)
def test_target_states(value: Any, target: TargetState) -> None:
    state, _ = applied(("target-state-src", value))
    assert state.target("src") is target


def test_a_deleted_connector_leaves_nothing() -> None:
    state, changes = applied(
        ("connector-src", {"properties": SRC}),
        ("task-src-0", {"properties": {}}),
        ("commit-src", {"tasks": 1}),
        ("target-state-src", {"state": "PAUSED"}),
        ("connector-src", None),
        ("target-state-src", None),
    )
    assert changes[-2:] == [Changed(Change.DELETED, "src"), None]
    assert (state.connectors, state.tasks, state.targets) == ({}, {}, {})


def test_tasks_are_unfenced_from_their_commit_until_their_count_is_recorded() -> None:
    state, _ = applied(("task-src-0", {"properties": {}}), ("commit-src", {"tasks": 1}))
    assert (state.unfenced, state.fenced_counts, state.generations) == ({"src"}, {}, {"src": 1})
    applied(("tasks-fencing-src", {"task-count": 1}), state=state)
    assert (state.unfenced, state.fenced_counts, state.generations) == (set(), {"src": 1}, {"src": 1})
    applied(("commit-src", {"tasks": 0}), ("connector-src", None), state=state)
    assert (state.unfenced, state.fenced_counts, state.generations) == ({"src"}, {"src": 1}, {"src": 2})
    assert state.task_ids("src") == []


def test_restarts_and_logger_levels_are_single_events() -> None:
    key = {"key": base64.b64encode(b"secret").decode(), "algorithm": "HmacSHA256", "creation-timestamp": 5}
    state, changes = applied(
        ("restart-connector-src", {"include-tasks": True, "only-failed": False}),
        ("logger-cluster-some.logger", {"level": "INFO"}),
        ("session-key", key),
    )
    assert changes == [
        Changed(Change.RESTART, "src", (True, False)),
        Changed(Change.LOGGER, "some.logger", "INFO"),
        Changed(Change.SESSION_KEY, ""),
    ]
    assert state.session_key == SessionKey(b"secret", "HmacSHA256", 5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("connector-src", "{bad"),
        ("connector-src", "[]"),
        ("connector-src", "{}"),
        ("connector-src", "[" * 100_000),
        ("task-src", '{"properties": {}}'),
        ("commit-src", '{"tasks": "many"}'),
        ("target-state-src", '{"state": "DANCING"}'),
        ("restart-connector-src", "5"),
        ("tasks-fencing-src", '{"task-count": "many"}'),
        ("session-key", '{"key": "?", "algorithm": "a", "creation-timestamp": 1}'),
        ("something-else", "{}"),
    ],
)
def test_malformed_records_of_the_config_topic_are_skipped(key: str, value: str) -> None:
    state, changes = applied((key, value), ("connector-other", {"properties": SRC}))
    assert changes == [None, Changed(Change.CONNECTOR, "other")]
    assert list(state.connectors) == ["other"]


async def test_a_written_configuration_is_known_when_the_write_returns() -> None:
    store = ConfigStore(MemoryLog())
    seen: list[Changed] = []
    await store.start(seen.append)
    await store.put_connector("src", SRC, TargetState.STOPPED)
    assert (store.state.connectors, store.state.target("src")) == ({"src": SRC}, TargetState.STOPPED)
    await store.put_target("src", TargetState.STARTED)
    await store.put_tasks("src", [{"a": "0"}])
    await store.put_target("src", TargetState.STOPPED)
    assert store.state.task_ids("src") == []
    await store.put_restart("src", include_tasks=True, only_failed=True)
    await store.put_session_key(SessionKey(b"key", "HmacSHA256", 1))
    await store.put_logger("a", "INFO")
    await store.delete_connector("src")
    assert store.state.connectors == {}
    assert [one.what for one in seen] == [
        Change.TARGET,
        Change.CONNECTOR,
        Change.TARGET,
        Change.TASKS,
        Change.TASKS,
        Change.TARGET,
        Change.RESTART,
        Change.SESSION_KEY,
        Change.LOGGER,
        Change.DELETED,
    ]
