"""What groups write into the log, and in which order it counts."""

from __future__ import annotations

import asyncio

import pytest

from broker.groups.group import CommittedOffset, Group, GroupState
from broker.groups.journal import Journal
from protocol.errors import KafkaError


class Log:
    """A log whose appends are acknowledged by hand."""

    def __init__(self) -> None:
        self.acknowledged: list[asyncio.Event] = []

    async def append(self, partition: int, batch: bytearray) -> int:
        offset = len(self.acknowledged)
        self.acknowledged.append(asyncio.Event())
        await self.acknowledged[offset].wait()
        return offset


def at(offset: int) -> CommittedOffset:
    return CommittedOffset(offset=offset, leader_epoch=-1, metadata="", commit_timestamp_ms=0)


async def test_of_two_commits_under_way_the_later_one_in_the_log_counts() -> None:
    log, group = Log(), Group("g", 0)
    journal = Journal(log, lambda: 0)
    commits = [asyncio.ensure_future(journal.store_offsets(group, {("t", 0): at(offset)})) for offset in (10, 20)]
    await asyncio.sleep(0)
    for written, commit in zip(reversed(log.acknowledged), reversed(commits), strict=True):
        written.set()
        await commit
    assert group.offsets["t", 0].offset == 20


async def test_a_group_that_has_moved_on_writes_nothing() -> None:
    log, group = Log(), Group("g", 0, state=GroupState.DEAD)
    with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
        await Journal(log, lambda: 0).store_group(group)
    assert not log.acknowledged
