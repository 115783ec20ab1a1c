"""The states of connectors and tasks in the status topic."""

from __future__ import annotations

from parley.pipeline.connect.distributed.config_following import restart_plan
from parley.pipeline.connect.distributed.log import MemoryLog
from parley.pipeline.connect.distributed.protocol import Work
from parley.pipeline.connect.distributed.statuses import StatusStore
from parley.pipeline.connect.herder_results import State, Status, TaskId

TASK = TaskId("src", 0)


async def started() -> tuple[StatusStore, MemoryLog]:
    log = MemoryLog()
    store = StatusStore(log)
    await store.start()
    return store, log


async def test_statuses_come_back() -> None:
    store, _ = await started()
    connector = Status(State.RUNNING, "host:1", 3, version="1.0")
    failed = Status(State.FAILED, "host:2", 4, trace="why")
    await store.put("src", connector)
    await store.put(TASK, failed)
    assert (store.connectors, store.tasks_of("src")) == ({"src": connector}, {0: failed})
    await store.delete("src", [TASK], whole=True)
    assert (store.connectors, store.tasks) == ({}, {})


async def test_who_comes_later_is_not_overruled() -> None:
    store, _ = await started()
    running = Status(State.RUNNING, "new:1", 5)
    await store.put(TASK, running)
    await store.put(TASK, Status(State.UNASSIGNED, "old:1", 4), unless_newer=True)
    assert store.tasks[TASK] == running
    await store.put(TASK, Status(State.UNASSIGNED, "new:1", 5), unless_newer=True)
    assert store.tasks[TASK].state is State.UNASSIGNED


async def test_topics_that_are_used() -> None:
    store, _ = await started()
    await store.put_topic(TASK, "a", 1)
    await store.put_topic(TaskId("connector-b", 7), "a", 1)
    assert store.topics == {"src": {"a": TASK}, "connector-b": {"a": TaskId("connector-b", 7)}}
    await store.reset_topics("src")
    assert store.topics["src"] == {}


async def test_malformed_records_of_the_status_topic_are_skipped() -> None:
    store, log = await started()
    for key in ("status-connector-src", "status-task-src", "status-task-src-0", "status-topic-a:connector-b", "else"):
        for value in (b"{bad", b"[]", b"{}", b'{"state": "DANCING", "worker_id": "", "generation": 1}', b"\xff"):
            await log.send([(key.encode(), value)])
    await log.send([(b"\xff", b"{}")])
    assert (store.connectors, store.tasks) == ({}, {})


async def test_a_restart_can_include_tasks_and_only_failed_ones() -> None:
    store, _ = await started()
    await store.put("src", Status(State.RUNNING, "host:1"))
    await store.put(TaskId("src", 0), Status(State.FAILED, "host:1"))
    await store.put(TaskId("src", 1), Status(State.RUNNING, "host:1"))
    connector = Work(connectors=frozenset({"src"}))
    failed, running = (Work(tasks=frozenset({TaskId("src", number)})) for number in (0, 1))
    expected = {
        (False, False): connector,
        (False, True): Work(),
        (True, True): failed,
        (True, False): connector | failed | running,
    }
    for (include_tasks, only_failed), plan in expected.items():
        assert restart_plan(store, "src", include_tasks=include_tasks, only_failed=only_failed) == plan
    assert not restart_plan(store, "none", include_tasks=True, only_failed=False)
