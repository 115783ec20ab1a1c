"""VerifyLogs, and ``parley log-dirs --verify``: the logs are read again, and the damage in them is listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from parley import Broker
from parley.protocol.client import Client
from parley.protocol.messages.log_verification import VerifyLogsRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.tools.cli.verify_logs import as_data, as_lines, is_damaged, verified
from tests.broker.api.bench import batch


async def filled(broker: Broker, client: Client, *topics: str) -> None:
    """Create the topics, and write 20 batches to each."""
    new = [
        CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        for name in topics
    ]
    await client.send(CreateTopicsRequest(topics=new, timeout_ms=10_000))
    for name in topics:
        for _ in range(20):
            broker.server.parts.partitions.find(name, 0).append(batch(100), acks=1, now_ms=0)


async def test_the_progress_is_reported_until_everything_is_verified(tmp_path: Path) -> None:
    async with Broker(data_dir=str(tmp_path)) as broker, Client(broker.bootstrap_servers) as client:
        await filled(broker, client, "t", "u")
        first = await client.send(VerifyLogsRequest(topics=["t"]))
        assert [topic.name for topic in first.topics] == ["t"]
        (log,) = first.topics[0].partitions
        assert (log.unverified_bytes, log.damage) == (log.size_bytes, [])
        assert log.log_dir == str(broker.server.parts.logs.directories[0].path)
        again = first
        while again.topics[0].partitions[0].unverified_bytes:
            again = await client.send(VerifyLogsRequest(topics=["t"], since_ms=first.since_ms))
            assert again.since_ms == first.since_ms
        assert broker.server.parts.scrubber.verified_bytes == log.size_bytes


async def test_a_log_that_is_deleted_meanwhile_is_left_out(tmp_path: Path) -> None:
    """The log of a deleted topic is gone before the handler reaches its partition, which still refers to the log."""
    async with Broker(data_dir=str(tmp_path)) as broker, Client(broker.bootstrap_servers) as client:
        await filled(broker, client, "t", "u")
        await broker.server.parts.logs.delete("t", 0)
        assert broker.server.parts.partitions.find("t", 0).is_open
        found = await client.send(VerifyLogsRequest(topics=None))
        assert [topic.name for topic in found.topics] == ["u"]


async def test_a_time_in_the_future_counts_as_now(tmp_path: Path) -> None:
    async with Broker(data_dir=str(tmp_path)) as broker, Client(broker.bootstrap_servers) as client:
        now = await client.send(VerifyLogsRequest(topics=[]))
        future = await client.send(VerifyLogsRequest(topics=[], since_ms=1 << 62))
        assert now.since_ms <= future.since_ms < now.since_ms + 3_600_000


async def test_damaged_records_are_listed(tmp_path: Path) -> None:
    async with Broker(data_dir=str(tmp_path)) as broker, Client(broker.bootstrap_servers) as client:
        await filled(broker, client, "t", "whole")
        path = tmp_path / "t-0" / "00000000000000000000.log"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        with path.open("r+b") as file:
            file.write(data)
        number = broker.server.identity.broker_id
        found = as_data(await verified(client, [number], []))
    assert is_damaged(found)
    logs: dict[str, Any] = {each["partition"]: each for each in found["brokers"][0]["partitions"]}
    assert logs["whole-0"]["damage"] == []
    (damage,) = logs["t-0"]["damage"]
    assert 0 < damage["firstOffset"] <= damage["lastOffset"] < 2000
    lines = as_lines(found)
    assert lines[0].startswith(f"Broker {number}: 2 partitions, ")
    assert lines[0].endswith(" verified, 1 damaged range.")
    assert lines[1].startswith(f"  t-0 offsets {damage['firstOffset']} to {damage['lastOffset']}: ")
    assert json.dumps(found)


def test_no_damage() -> None:
    found = {"brokers": [{"broker": 1, "partitions": [{"partition": "t-0", "size": 2048, "damage": []}]}]}
    assert not is_damaged(found)
    assert as_lines(found) == ["Broker 1: 1 partition, 2.0 KiB verified, no damage."]
