"""A broker that restarts with the same data directory, or with one that it must not use."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from parley import Broker
from parley.broker.membership.known_stores import STORE_FILE
from parley.consensus.errors import WrongStore
from parley.protocol.client import Client
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.messages.metadata import MetadataResponse
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.protocol.uuids import UUID
from parley.storage.partition_metadata import write_partition_metadata


async def create(client: Client, name: str) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=2, replication_factor=1, assignments=[], configs=[]
    )
    answer = await client.send(CreateTopicsRequest(topics=[topic], timeout_ms=5000))
    assert [topic.error_code for topic in answer.topics] == [0]


async def produce(client: Client, topic: str, value: bytes) -> int:
    partition = ProduceRequest.PartitionProduceData(index=0, records=build([Record(0, 1, None, value, ())]))
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])
    answer = await client.send(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data]), version=9)
    (response,) = answer.responses[0].partition_responses
    assert response.error_code == 0
    return int(response.base_offset)


async def fetched(client: Client, topic: str) -> bytes:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=100, min_bytes=1, topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])]
    )
    answer = await client.send(request, version=11)
    return bytes(answer.responses[0].partitions[0].records or b"")


async def described(client: Client) -> MetadataResponse:
    return await client.metadata(None)


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        await create(client, "t")
        assert await produce(client, "t", b"first") == 0
        before = await described(client)
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        after = await described(client)
        assert after.cluster_id == before.cluster_id
        assert [(t.name, t.topic_id) for t in after.topics] == [(t.name, t.topic_id) for t in before.topics]
        old, new = before.topics[0].partitions[0], after.topics[0].partitions[0]
        assert new.leader_epoch > old.leader_epoch, "a leader that came back leads under a new epoch"
        assert b"first" in await fetched(client, "t")
        assert await produce(client, "t", b"second") == 1


async def test_a_store_that_was_wiped_is_refused(tmp_path: Path) -> None:
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        await create(client, "t")
        await produce(client, "t", b"precious")
    shutil.rmtree(tmp_path / "coordination")
    with pytest.raises(WrongStore, match=STORE_FILE):
        async with Broker(data_dir=tmp_path):
            pass
    assert (tmp_path / "t-0").is_dir(), "nothing was touched"


async def test_a_store_that_has_lost_everything_but_its_identity_is_refused(tmp_path: Path) -> None:
    """A store whose latest writes were all in its WAL, and whose WAL was deleted. No new cluster begins in it."""
    store = tmp_path / "coordination" / "store.db"
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        await create(client, "t")
        await produce(client, "t", b"precious")
    with closing(sqlite3.connect(store)) as connection:
        for table in ("entries", "removed", "sessions"):
            connection.execute(f"DELETE FROM {table}")
        connection.execute("UPDATE state SET checksum = checksum - total, total = 0")
        connection.commit()
    with pytest.raises(WrongStore, match=r"the store is empty.* Restore the store from a backup"):
        async with Broker(data_dir=tmp_path):
            pass
    assert (tmp_path / "t-0").is_dir(), "nothing was touched"


@pytest.mark.slow
async def test_the_error_says_how_to_start_a_new_cluster_from_disk(tmp_path: Path) -> None:
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        await create(client, "t")
        await produce(client, "t", b"precious")
        before = await described(client)
    shutil.rmtree(tmp_path / "coordination")
    (tmp_path / STORE_FILE).unlink()
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        after = await described(client)
        assert [(t.name, t.topic_id) for t in after.topics] == [(t.name, t.topic_id) for t in before.topics]
        assert after.cluster_id == before.cluster_id
        assert b"precious" in await fetched(client, "t")
        assert await produce(client, "t", b"more") == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [True, False], ids=["deleted topic", "unknown topic"])
async def test_the_log_of_a_topic_deleted_meanwhile_is_deleted_and_any_other_stray_kept(
    tmp_path: Path, is_known: bool
) -> None:
    """A store restored from a backup does not know the latest topics either: their logs must survive."""
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        await create(client, "gone")
        await create(client, "t")
        await produce(client, "gone", b"deleted")
        await produce(client, "t", b"wanted")
        shutil.copytree(tmp_path / "gone-0", tmp_path / "copy")
        await client.send(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=5000), version=5)
    (tmp_path / "copy").rename(tmp_path / "gone-0")
    if not is_known:
        write_partition_metadata(tmp_path / "gone-0", UUID(int=7), 0)
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        strays = [name for name in os.listdir(tmp_path) if name.endswith("-stray")]
        if is_known:
            assert not strays
            assert not any(name.startswith("gone-0") for name in os.listdir(tmp_path)), "its room is free"
        else:
            assert b"deleted" in (tmp_path / strays[0] / "00000000000000000000.log").read_bytes()
        assert b"wanted" in await fetched(client, "t")
        await create(client, "gone")
        assert await produce(client, "gone", b"a new one of the name") == 0
