"""DeleteRecords for internal topics. For other topics: ``tests/broker/replication/test_fetcher_assignment.py``."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from parley.broker.api.delete_records import TO_HIGH_WATERMARK, DeleteRecordsApi
from parley.broker.metadata.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from parley.broker.network.request_context import RequestContext
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.topics import DeleteRecordsRequest, DeleteRecordsResponse
from parley.storage.log_config import LogConfig
from tests.broker.api.bench import Bench


@pytest.mark.parametrize(
    ("topic", "code", "left"),
    [
        (OFFSETS_TOPIC, ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
        (TRANSACTIONS_TOPIC, ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
        ("t", ErrorCode.NONE, 2),
    ],
)
async def test_no_client_deletes_records_of_coordinators(
    tmp_path: Path, topic: str, code: ErrorCode, left: int
) -> None:
    bench = Bench(tmp_path)
    await bench.create(topic, config=LogConfig(cleanup_policy=frozenset({"delete"})))
    bench.write(topic, 2)
    asked = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=TO_HIGH_WATERMARK)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[asked])], timeout_ms=1_000
    )
    api = DeleteRecordsApi(bench.partitions, bench.purgatories.produce)
    response = api.delete_records(cast(RequestContext, None), request)
    assert isinstance(response, DeleteRecordsResponse)
    assert response.topics[0].partitions[0].error_code == code
    assert bench.partition(topic).log.log_start_offset == left
    await bench.tasks.close()
