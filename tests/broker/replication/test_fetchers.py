"""Followers over real sockets: they copy their leader, find where logs parted, and outlive what goes wrong."""

from __future__ import annotations

from pathlib import Path

from tests.broker.replication.bench import batch, eventually, nodes, now_ms, values_of


async def test_followers_copy_their_leader(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3) as cluster:
        await cluster.create("t", [1, 2, 3], partitions=3)
        for index in range(3):
            for number in range(20):
                cluster[1].partition("t", index).append(batch(b"%d-%d" % (index, number)), acks=-1, now_ms=now_ms())
        followers = [cluster[i].log("t", index) for i in (2, 3) for index in range(3)]
        await eventually(lambda: all(log.log_end_offset == 20 for log in followers))
        await eventually(lambda: all(cluster[1].log("t", index).high_watermark == 20 for index in range(3)))
        for index in range(3):
            expected = values_of(cluster[1].log("t", index))
            assert len(expected) == 20
            assert values_of(cluster[2].log("t", index)) == values_of(cluster[3].log("t", index)) == expected
        await eventually(lambda: all(log.high_watermark == 20 for log in followers))
