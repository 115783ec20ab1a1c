"""Metadata: what mentioning topics creates."""

from __future__ import annotations

from pathlib import Path

from broker.api.metadata import CREATED_PER_REQUEST_MAX, MetadataApi
from broker.api.outages import Outages
from broker.controller.topics import NewTopic, TopicOutcome
from protocol.errors import ErrorCode
from protocol.messages.metadata import MetadataRequest
from tests.broker.api.bench import Bench, context


class Creation:
    """Creates topics on the bench as the controller would."""

    automatic = True

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    async def create_mentioned(self, topics: list[NewTopic]) -> list[TopicOutcome]:
        for topic in topics:
            await self._bench.create(topic.name)
        return []


async def test_one_request_creates_so_many_topics_and_the_next_one_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    api = MetadataApi(bench.metadata, Creation(bench), Outages(bench.metadata, lambda broker: None))
    names = [f"t{i}" for i in range(CREATED_PER_REQUEST_MAX + 2)]
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=True
    )
    for known in (CREATED_PER_REQUEST_MAX, len(names)):
        answer = await api.metadata(context(12), request)
        codes = [topic.error_code for topic in answer.topics]
        absent = len(names) - known
        assert codes == [ErrorCode.NONE] * known + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * absent
    await bench.tasks.close()
