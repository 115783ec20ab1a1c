"""Every status reaches the status topic, whatever the brokers do in the meantime."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from parley.pipeline.connect.distributed.log import MemoryLog
from parley.pipeline.connect.distributed.statuses import StatusStore, StatusWriter
from parley.pipeline.connect.herder_results import State, Status, TaskId
from parley.protocol.errors import ErrorCode, KafkaError

TASK = TaskId("c", 0)


class Away(MemoryLog):
    """A log whose first writes fail; `sent` contains the records of the others."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self._times = times

    async def send(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        self._times -= 1
        if self._times >= 0:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION)
        self.sent += [key for key, _ in records]
        await super().send(records)


async def test_the_latest_status_of_each_is_eventually_written() -> None:
    log = Away(times=1)
    statuses = StatusStore(log)
    await statuses.start()
    status_writer = StatusWriter(statuses)
    running = asyncio.create_task(status_writer.run())
    await status_writer.drained()
    for state in (State.RUNNING, State.UNASSIGNED, State.FAILED):
        status_writer.state(TASK, Status(state, "host:1"), unless_newer=False)
    status_writer.state("c", Status(State.RUNNING, "host:1"), unless_newer=False)
    status_writer.topic(TASK, "t", 1)
    await status_writer.drained()
    assert log.sent == [b"status-task-c-0", b"status-connector-c", b"status-topic-t:connector-c"]
    assert statuses.tasks[TASK].state is State.FAILED
    assert statuses.connectors["c"].state is State.RUNNING
    assert statuses.topics == {"c": {"t": TASK}}
    running.cancel()
