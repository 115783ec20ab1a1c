"""Requests brokers' reports about their logs (GetReplicaLogInfo, KIP-966).

The report of the controller's own broker is created in the same process, so after a restart the report of tens of
thousands of logs does not cross the network and cannot time out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

from parley.broker.controller.broker_reports import BrokerReport, Replica, ReplicaReport
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.types import UNASSIGNED_DIRECTORY, BrokerRegistration
from parley.broker.network.peers import Peers
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.replication import GetReplicaLogInfoRequest, GetReplicaLogInfoResponse
from parley.protocol.schema import ZERO_UUID
from parley.protocol.uuids import UUID

_log = logging.getLogger(__name__)

REPLICAS_MAX = 1000
"""The maximum number of logs in one request, and in one response."""
TIMEOUT_S = 2.0
"""The time limit for one response of a broker."""

_Ask = Callable[[GetReplicaLogInfoRequest], Awaitable[GetReplicaLogInfoResponse]]


class ReportRequests:
    """Requests log reports from brokers that are registered or about to be registered."""

    def __init__(self, metadata: Metadata, peers: Peers, listener: str) -> None:
        """``listener`` is the name of the listener that brokers use among themselves."""
        self._metadata = metadata
        self._peers = peers
        self._listener = listener
        self._own: tuple[UUID, Callable[[GetReplicaLogInfoRequest], GetReplicaLogInfoResponse]] | None = None

    def set_own(
        self, incarnation_id: UUID, page: Callable[[GetReplicaLogInfoRequest], GetReplicaLogInfoResponse]
    ) -> None:
        """Call ``page(request)`` for the reports of this process, which has this incarnation id, instead of sending the
        requests over the network."""
        self._own = incarnation_id, page

    async def __call__(self, broker: BrokerRegistration, wanted: Sequence[Replica] | None) -> BrokerReport | None:
        """Return a broker's report of these logs, or of all its logs if ``wanted`` is None.

        Returns None if the broker does not respond or responds with an error, if another process uses its address, or
        if it runs a version that cannot send reports.
        """
        if not broker.log_dirs:
            return None
        if self._own is not None and self._own[0] == broker.incarnation_id:
            return await self._report(self._ask_own, broker, wanted)
        endpoint = broker.endpoint(self._listener)
        if endpoint is None:
            return None
        client = self._peers.client_at(endpoint, "reports")
        try:
            return await self._report(partial(client.send, timeout=TIMEOUT_S), broker, wanted)
        except (KafkaError, OSError) as error:
            _log.info(
                "failed to get a broker's report of its logs", extra={"broker": broker.broker_id, "reason": str(error)}
            )
            return None
        finally:
            await client.close()

    async def _ask_own(self, request: GetReplicaLogInfoRequest) -> GetReplicaLogInfoResponse:
        assert self._own is not None
        await asyncio.sleep(0)  # between two pages, the event loop does other work
        return self._own[1](request)

    async def _report(self, ask: _Ask, broker: BrokerRegistration, wanted: Sequence[Replica] | None) -> BrokerReport:
        replicas: dict[Replica, ReplicaReport] = {}
        is_any_offline = False
        async for page in _pages(ask, wanted):
            if page.incarnation_id != broker.incarnation_id:
                raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, "another process uses the broker's address")
            for topic in page.topic_partition_log_info_list:
                topic_id = self._topic_id(topic)
                replicas.update(((topic_id, each.partition), _replica(each)) for each in topic.partition_log_info)
            is_any_offline = is_any_offline or page.is_any_directory_offline
        return BrokerReport(broker.incarnation_id, replicas, is_any_offline)

    def _topic_id(self, topic: GetReplicaLogInfoResponse.TopicPartitionLogInfo) -> UUID:
        """Return the topic's id. A log without a topic id belongs to the topic with its name."""
        if topic.topic_id == ZERO_UUID and (known := self._metadata.image.topics.get(topic.topic_name)) is not None:
            return known.topic_id
        return topic.topic_id


async def _pages(ask: _Ask, wanted: Sequence[Replica] | None) -> AsyncIterator[GetReplicaLogInfoResponse]:
    if wanted is None:
        async for page in _pages_of_all(ask):
            yield page
        return
    for begin in range(0, len(wanted), REPLICAS_MAX):
        by_topic: defaultdict[UUID, list[int]] = defaultdict(list)
        for topic_id, index in wanted[begin : begin + REPLICAS_MAX]:
            by_topic[topic_id].append(index)
        topics = [
            GetReplicaLogInfoRequest.TopicPartitions(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in by_topic.items()
        ]
        yield await ask(GetReplicaLogInfoRequest(topic_partitions=topics))


async def _pages_of_all(ask: _Ask) -> AsyncIterator[GetReplicaLogInfoResponse]:
    request = GetReplicaLogInfoRequest(topic_partitions=None)
    while True:
        page = await ask(request)
        yield page
        if not page.truncated:
            return
        last = page.topic_partition_log_info_list[-1]
        request = GetReplicaLogInfoRequest(
            topic_partitions=None, after_topic=last.topic_name, after_partition=last.partition_log_info[-1].partition
        )


def _replica(log: GetReplicaLogInfoResponse.PartitionLogInfo) -> ReplicaReport:
    return ReplicaReport(
        leader_epoch=log.last_written_leader_epoch,
        log_end_offset=log.log_end_offset,
        high_watermark=log.high_watermark,
        current_leader_epoch=log.current_leader_epoch,
        partition_epoch=log.partition_epoch,
        directory=UNASSIGNED_DIRECTORY if log.directory_id == ZERO_UUID else log.directory_id,
        error=ErrorCode(log.error_code),
        may_be_cut_by_power=log.may_be_cut_by_power,
    )
