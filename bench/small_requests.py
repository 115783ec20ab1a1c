"""``python -m bench.small_requests``: the broker's processor time for each small request, compared with Apache Kafka.

A client on a plain socket sends one request at a time: a produce request of one record, a fetch at the end of a
partition, the commit of one offset, a member's heartbeat, and the metadata of one topic. Each kind is sent ``--count``
times as a warm-up, in which the JVM compiles its hot code, and then ``--count`` times for the figure.
"""

from __future__ import annotations

import time

from bench.clusters import Measured
from bench.creation import CREATE_VERSION, METADATA_VERSION, Client, new_topics
from bench.figures import Figures, report
from bench.kinds import single_brokers
from bench.turns import in_turns, turns_parser
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.messages.group_offsets import OffsetCommitRequest
from parley.protocol.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
)
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.protocol.schema import Request

TOPIC, GROUP = "topic-0", "group"
PRODUCE_VERSION, FETCH_VERSION, COMMIT_VERSION, HEARTBEAT_VERSION, JOIN_VERSION, SYNC_VERSION = 9, 11, 8, 4, 3, 3
POLL_S = 0.2
SESSION_MS = 60_000
STARTING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""Errors that requests for a new coordinator may return at first. Clients retry them."""


def join(client: Client) -> tuple[str, int]:
    """Join a group as its only member. Returns the member's id and the generation. Raises SystemExit if the member
    cannot join."""
    finding = FindCoordinatorRequest(key=GROUP)
    while True:
        found, _ = client.ask(finding, 1)
        assert isinstance(found, FindCoordinatorResponse)
        if not found.error_code:
            break
        time.sleep(POLL_S)
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    joining = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )
    joined, _ = client.ask(joining, JOIN_VERSION)
    while isinstance(joined, JoinGroupResponse) and joined.error_code in STARTING:
        time.sleep(POLL_S)
        joined, _ = client.ask(joining, JOIN_VERSION)
    assert isinstance(joined, JoinGroupResponse)
    if joined.error_code:
        raise SystemExit(f"the member cannot join: error {joined.error_code}")
    share = SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")
    syncing = SyncGroupRequest(
        group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[share]
    )
    client.ask(syncing, SYNC_VERSION)
    return joined.member_id, joined.generation_id


def requests(member_id: str, generation: int) -> dict[str, tuple[Request, int]]:
    """Return each kind of request, with its version."""
    records = build([Record(0, int(time.time() * 1000), b"key", b"x" * 100, ())])
    produced = ProduceRequest.PartitionProduceData(index=0, records=records)
    fetched = FetchRequest.FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1 << 20)
    committed = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    metadata = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=TOPIC)])
    return {
        "produce of one record": (
            ProduceRequest(
                acks=-1,
                timeout_ms=SESSION_MS,
                topic_data=[ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[produced])],
            ),
            PRODUCE_VERSION,
        ),
        "fetch that finds nothing": (
            FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                session_epoch=-1,
                topics=[FetchRequest.FetchTopic(topic=TOPIC, partitions=[fetched])],
                forgotten_topics_data=[],
            ),
            FETCH_VERSION,
        ),
        "commit of one offset": (
            OffsetCommitRequest(
                group_id=GROUP,
                generation_id_or_member_epoch=generation,
                member_id=member_id,
                topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=TOPIC, partitions=[committed])],
            ),
            COMMIT_VERSION,
        ),
        "heartbeat": (
            HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id),
            HEARTBEAT_VERSION,
        ),
        "metadata of one topic": (metadata, METADATA_VERSION),
    }


def measure(broker: Measured, count: int, figures: Figures) -> None:
    """Measure a broker for one turn, and add the results to ``figures``."""
    client = Client(broker.bootstrap)
    client.ask(new_topics("topic", 1, 6, 1), CREATE_VERSION)
    for kind, (request, version) in requests(*join(client)).items():
        response, _ = client.ask(request, version)
        if refused := error_of(response):
            raise SystemExit(f"{kind}: {broker.name} responds with error {refused}")
        for _ in range(count):
            client.ask(request, version)
        cpu = broker.cpu_seconds()
        for _ in range(count):
            client.ask(request, version)
        figures[f"{kind}: broker CPU us", broker.name].append((broker.cpu_seconds() - cpu) / count * 1e6)


def error_of(response: object) -> int:
    """Return the first error code in a response; 0 if it has none."""
    if isinstance(response, list):
        return next((code for each in response if (code := error_of(each))), 0)
    code = int(getattr(response, "error_code", 0))
    names = ("topics", "partitions", "responses", "partition_responses")
    return code or next((found for name in names if (found := error_of(getattr(response, name, [])))), 0)


def main() -> None:
    parser = turns_parser("bench.small_requests", __doc__, rounds=3)
    parser.add_argument("--count", type=int, default=20_000, help="number of requests of each kind")
    given = parser.parse_args()
    kinds = single_brokers(given.alone, peers=True)
    report(in_turns(kinds, given.rounds, lambda broker, figures: measure(broker, given.count, figures)))


if __name__ == "__main__":
    main()
