"""Requests for brokers' reports: paging, brokers that fail, and logs that do not know their topic's id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from parley.broker.controller.broker_reports import Replica
from parley.broker.controller.report_requests import TIMEOUT_S, ReportRequests
from parley.broker.metadata.changes import Delta, TopicCreated
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import (
    UNASSIGNED_DIRECTORY,
    BrokerRegistration,
    Endpoint,
    PartitionState,
    TopicImage,
)
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.replication import GetReplicaLogInfoRequest, GetReplicaLogInfoResponse
from parley.protocol.schema import ZERO_UUID
from parley.protocol.uuids import UUID
from tests.support.virtual_time import run

LISTENER, INCARNATION, DIRECTORY = "INTERNAL", UUID(int=5), UUID(int=6)
BROKER = BrokerRegistration(
    1, 9, INCARNATION, (Endpoint("OTHER", "PLAINTEXT", "h", 1), Endpoint(LISTENER, "PLAINTEXT", "h", 2)),
    log_dirs=(DIRECTORY,),
)  # fmt: skip
KNOWN = TopicImage("known", UUID(int=3), (PartitionState((1,), (1,), 1),))


class Peer:
    """The broker, and the connection to it: each request gets the next response, or raises it."""

    def __init__(self, *responses: GetReplicaLogInfoResponse | Exception) -> None:
        self.responses = list(responses)
        self.requests: list[GetReplicaLogInfoRequest] = []
        self.addresses: list[Endpoint] = []
        self.closed = 0
        metadata = Metadata(MetadataImage("c"))
        metadata.apply(Delta(0, 1, (TopicCreated(KNOWN),)))
        peers: Any = self
        self.report = ReportRequests(metadata, peers, LISTENER)

    def client_at(self, endpoint: Endpoint, purpose: str) -> Any:
        self.addresses.append(endpoint)
        return self

    async def send(self, request: GetReplicaLogInfoRequest, *, timeout: float) -> GetReplicaLogInfoResponse:
        assert timeout == TIMEOUT_S
        self.requests.append(request)
        response = self.responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response

    async def close(self) -> None:
        self.closed += 1


def log(partition: int, end: int = 7, directory: UUID = DIRECTORY) -> GetReplicaLogInfoResponse.PartitionLogInfo:
    return GetReplicaLogInfoResponse.PartitionLogInfo(
        partition=partition,
        last_written_leader_epoch=2,
        current_leader_epoch=3,
        log_end_offset=end,
        error_code=0,
        directory_id=directory,
        high_watermark=end - 1,
        partition_epoch=4,
    )


def page(
    topic_id: UUID, *partitions: int, name: str = "t", truncated: bool = False, **fields: Any
) -> GetReplicaLogInfoResponse:
    topic = GetReplicaLogInfoResponse.TopicPartitionLogInfo(
        topic_id=topic_id, topic_name=name, partition_log_info=[log(partition) for partition in partitions]
    )
    given = {"incarnation_id": INCARNATION, **fields}
    return GetReplicaLogInfoResponse(
        broker_epoch=-1, truncated=truncated, topic_partition_log_info_list=[topic], **given
    )


A, B = UUID(int=1), UUID(int=2)


def test_a_report_of_all_logs_is_read_page_by_page() -> None:
    peer = Peer(page(A, 0, 1, name="a", truncated=True), page(B, 4, name="b", is_any_directory_offline=True))
    report = run(peer.report(BROKER, None))
    assert report is not None
    assert set(report.replicas) == {(A, 0), (A, 1), (B, 4)}
    assert (report.incarnation_id, report.is_any_directory_offline) == (INCARNATION, True)
    found = report.replicas[A, 0]
    assert (found.leader_epoch, found.current_leader_epoch, found.partition_epoch) == (2, 3, 4)
    assert (found.log_end_offset, found.high_watermark, found.directory) == (7, 6, DIRECTORY)
    assert [(each.topic_partitions, each.after_topic, each.after_partition) for each in peer.requests[1:]] == [
        (None, "a", 1)
    ]
    assert peer.requests[0].topic_partitions is None
    assert [each.port for each in peer.addresses] == [2], "the listener of the brokers"
    assert peer.closed == 1


@pytest.mark.parametrize(("count", "requests"), [(1, [1]), (1000, [1000]), (1001, [1000, 1]), (0, [])])
def test_many_logs_are_asked_for_in_requests_of_a_thousand(count: int, requests: list[int]) -> None:
    peer = Peer(*[page(A, 0)] * len(requests))
    wanted: Sequence[Replica] = [(A if index % 2 else B, index) for index in range(count)]
    report = run(peer.report(BROKER, wanted))
    asked = [[(t.topic_id, i) for t in each.topic_partitions or () for i in t.partitions] for each in peer.requests]
    assert [len(each) for each in asked] == requests
    assert sorted(replica for each in asked for replica in each) == sorted(wanted)
    assert report is not None
    assert not report.is_any_directory_offline


def test_a_log_that_does_not_know_its_topics_id_belongs_to_the_topic_of_its_name() -> None:
    for topic_id, name, expected in (
        (ZERO_UUID, "known", KNOWN.topic_id),
        (ZERO_UUID, "unknown", ZERO_UUID),
        (A, "known", A),
    ):
        report = run(Peer(page(topic_id, 0, name=name)).report(BROKER, None))
        assert report is not None
        assert set(report.replicas) == {(expected, 0)}


def test_a_log_without_a_directory_has_none_assigned() -> None:
    response = page(A)
    response.topic_partition_log_info_list[0].partition_log_info = [log(0, directory=ZERO_UUID)]
    report = run(Peer(response).report(BROKER, None))
    assert report is not None
    assert report.replicas[A, 0].directory == UNASSIGNED_DIRECTORY


@pytest.mark.parametrize(
    "failure",
    [
        lambda: KafkaError(ErrorCode.UNSUPPORTED_VERSION),
        lambda: ConnectionResetError("gone"),
        lambda: page(A, 0, incarnation_id=UUID(int=99)),
    ],
    ids=["refused", "gone", "another process"],
)
def test_a_broker_that_does_not_respond_has_no_report(
    failure: Callable[[], GetReplicaLogInfoResponse | Exception],
) -> None:
    peer = Peer(page(A, 0, truncated=True), failure())
    assert run(peer.report(BROKER, None)) is None
    assert peer.closed == 1


def test_the_controllers_own_broker_is_asked_in_the_same_process() -> None:
    peer = Peer()
    pages = [page(A, 0, 1, name="a", truncated=True), page(B, 4, name="b")]
    asked: list[GetReplicaLogInfoRequest] = []

    def own(request: GetReplicaLogInfoRequest) -> GetReplicaLogInfoResponse:
        asked.append(request)
        return pages[len(asked) - 1]

    peer.report.set_own(INCARNATION, own)
    report = run(peer.report(replace(BROKER, endpoints=()), None))
    assert report is not None
    assert set(report.replicas) == {(A, 0), (A, 1), (B, 4)}
    assert [(each.after_topic, each.after_partition) for each in asked[1:]] == [("a", 1)]
    assert not peer.addresses
    peer.responses.append(page(A, 0, incarnation_id=UUID(int=99)))
    assert run(peer.report(replace(BROKER, incarnation_id=UUID(int=99)), [(A, 0)])) is not None
    assert len(peer.addresses) == 1, "an earlier process of this broker"


def test_a_broker_that_cannot_be_reached_or_reports_nothing_is_not_asked() -> None:
    peer = Peer()
    for broker in (replace(BROKER, endpoints=BROKER.endpoints[:1]), replace(BROKER, log_dirs=())):
        assert run(peer.report(broker, None)) is None
    assert not peer.addresses
