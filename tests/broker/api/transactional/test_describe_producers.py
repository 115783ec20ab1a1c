"""DescribeProducers: what operators see of the transactions in a partition."""

from __future__ import annotations

from pathlib import Path

from parley.broker.api.producers import ProducersApi
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.producers import DescribeProducersRequest
from tests.broker.api.bench import BROKER, NOW_MS, OTHER, Bench, context


async def test_producers_are_described_with_their_transactions(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.create("t")
    await bench.create("followed", replicas=(BROKER, OTHER), leader=OTHER)
    await bench.create("elsewhere", replicas=(OTHER,), leader=OTHER)
    bench.write("t")
    bench.write_in_transaction("t", 1, epoch=3, count=2)
    bench.write_in_transaction("t", 2, epoch=0)
    bench.end_transaction("t", 2, epoch=0)
    api = ProducersApi(bench.partitions, None, None)  # type: ignore[arg-type]  # this request needs no other part
    asked = [
        DescribeProducersRequest.TopicRequest(name=name, partition_indexes=[0])
        for name in ("t", "followed", "elsewhere", "unknown", "no/name")
    ]
    response = await api.describe_producers(context(0, api_key=61), DescribeProducersRequest(topics=asked))
    here, followed, elsewhere, unknown, illegal = (topic.partitions[0] for topic in response.topics)
    described = {
        each.producer_id: (
            each.producer_epoch,
            each.last_sequence,
            each.last_timestamp,
            each.coordinator_epoch,
            each.current_txn_start_offset,
        )
        for each in here.active_producers
    }
    assert described == {1: (3, 1, NOW_MS + 1, -1, 1), 2: (0, 0, NOW_MS, 0, -1)}
    assert (followed.error_code, followed.active_producers) == (ErrorCode.NONE, [])
    assert elsewhere.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert illegal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    await bench.tasks.close()
