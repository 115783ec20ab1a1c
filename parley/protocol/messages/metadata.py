"""Metadata, DescribeCluster, DescribeTopicPartitions: the brokers of the cluster, its topics and their leaders."""

from __future__ import annotations

from typing import ClassVar

from parley.protocol.schema import ZERO_UUID, Request, Response, Struct, field, i8, i16, i32
from parley.protocol.uuids import UUID


class MetadataRequest(Request, key=3, versions="0-13", flexible="9+"):
    """Request the brokers, and the leaders of topics' partitions.

    Versions:
        1: None means all topics, and an empty list means none; before, an empty list meant all (KIP-4).
        2: the response has the cluster's id (KIP-78).
        3: the response says how long the client was throttled (KIP-124).
        4: allow_auto_topic_creation, so that a client can avoid the creation of topics (KAFKA-5291).
        5: the response lists replicas on failed disks (KIP-112).
        6: the client enforces throttle_time_ms itself (KIP-219).
        7: the response has leader epochs (KIP-320).
        8: authorized operations on request (KIP-430).
        9: flexible encoding (KIP-482).
        10: topic ids; in the request, they are supported from version 12 on only (KIP-516).
        11: include_cluster_authorized_operations moved to DescribeCluster (KIP-700).
        12: topics may be requested by id (KIP-516).
        13: the response has a top-level error (KIP-1102).
    """

    class MetadataRequestTopic(Struct):
        """A topic by name; from version 12 on also by id, with None as the name."""

        topic_id: UUID = field("10+", default=ZERO_UUID, ignorable=True)
        name: str | None = field(nullable="10+")

    topics: list[MetadataRequestTopic] | None = field(nullable="1+")  # None: all; an empty list: none (v0: all)
    allow_auto_topic_creation: bool = field("4+", default=True)
    include_cluster_authorized_operations: bool = field("8-10", default=False)
    include_topic_authorized_operations: bool = field("8+", default=False)


class MetadataResponse(Response, key=3, versions="0-13", flexible="9+"):
    """The live brokers, the controller, and the requested topics.

    Versions:
        1: racks (KIP-36), the controller's id, and whether a topic is internal (KIP-4).
        2: cluster_id (KIP-78).
        3: throttle_time_ms (KIP-124).
        4: same layout; allow_auto_topic_creation in the request (KAFKA-5291).
        5: offline_replicas, those on failed disks or dead brokers (KIP-112).
        6: sent before the client is throttled, not after (KIP-219).
        7: leader_epoch (KIP-320).
        8: authorized operations of topics and cluster (KIP-430).
        9: flexible encoding (KIP-482).
        10: topic_id (KIP-516).
        11: cluster_authorized_operations moved to DescribeCluster (KIP-700).
        12: name is None for a topic that was requested by an unknown id (KIP-516).
        13: error_code, with which a broker can make the client bootstrap again (KIP-1102).
    """

    class MetadataResponseBroker(Struct):
        """One broker, with the address of the listener that received the request."""

        node_id: i32
        host: str
        port: i32
        rack: str | None = field("1+", default=None, ignorable=True)

    class MetadataResponseTopic(Struct):
        """One topic, or the error for it. A broker encodes it once for many responses."""

        ENCODED_AHEAD: ClassVar[bool] = True
        error_code: i16 = 0
        name: str | None = field(nullable="12+")
        topic_id: UUID = field("10+", default=ZERO_UUID, ignorable=True)
        is_internal: bool = field("1+", default=False, ignorable=True)
        partitions: list[MetadataResponse.MetadataResponsePartition]
        # bit n: operation n is allowed; the lowest int32: not requested
        topic_authorized_operations: i32 = field("8+", default=-0x8000_0000)

    class MetadataResponsePartition(Struct):
        """The replicas and the leader of one partition."""

        error_code: i16 = 0
        partition_index: i32
        leader_id: i32  # -1: no leader, with LEADER_NOT_AVAILABLE
        leader_epoch: i32 = field("7+", default=-1, ignorable=True)
        replica_nodes: list[i32]
        isr_nodes: list[i32]
        offline_replicas: list[i32] = field("5+", default=[], ignorable=True)

    throttle_time_ms: i32 = field("3+", default=0, ignorable=True)
    brokers: list[MetadataResponseBroker]
    cluster_id: str | None = field("2+", default=None, ignorable=True)
    controller_id: i32 = field("1+", default=-1, ignorable=True)  # -1: unknown
    topics: list[MetadataResponseTopic]
    # bit n: operation n is allowed; the lowest int32: not requested
    cluster_authorized_operations: i32 = field("8-10", default=-0x8000_0000)
    error_code: i16 = field("13+", default=0, ignorable=True)


class DescribeClusterRequest(Request, key=60, versions="0-2", flexible="0+"):
    """Request the cluster's id, controller and brokers (KIP-700).

    Versions:
        1: endpoint_type, to request the controllers from a controller (KIP-919).
        2: include_fenced_brokers (KIP-1073).
    """

    include_cluster_authorized_operations: bool = False
    endpoint_type: i8 = field("1+", default=1)  # 1: brokers; 2: controllers
    include_fenced_brokers: bool = field("2+", default=False)


class DescribeClusterResponse(Response, key=60, versions="0-2", flexible="0+"):
    """The cluster's id, controller and brokers.

    Versions:
        1: endpoint_type; MISMATCHED_ENDPOINT_TYPE and UNSUPPORTED_ENDPOINT_TYPE may occur (KIP-919).
        2: is_fenced (KIP-1073).
    """

    class DescribeClusterBroker(Struct):
        """One broker, with the address of the listener that received the request."""

        broker_id: i32
        host: str
        port: i32
        rack: str | None = None
        is_fenced: bool = field("2+", default=False)

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    endpoint_type: i8 = field("1+", default=1)  # 1: brokers; 2: controllers
    cluster_id: str
    controller_id: i32 = -1  # -1: unknown
    brokers: list[DescribeClusterBroker]
    cluster_authorized_operations: i32 = -0x8000_0000  # bit n: operation n is allowed; the lowest int32: not requested


class DescribeTopicPartitionsRequest(Request, key=75, versions="0", flexible="0+"):
    """Request topics' partitions page by page, with their eligible leader replicas (KIP-966)."""

    class TopicRequest(Struct):
        """A topic whose partitions are requested, by name."""

        name: str

    class Cursor(Struct):
        """The first partition of the page."""

        topic_name: str
        partition_index: i32

    topics: list[TopicRequest]
    response_partition_limit: i32 = 2000  # the broker may send fewer; see next_cursor
    cursor: Cursor | None = None  # None: from the first partition of the first topic


class DescribeTopicPartitionsResponse(Response, key=75, versions="0", flexible="0+"):
    """One page of partitions, in the order of topic names."""

    class DescribeTopicPartitionsResponseTopic(Struct):
        """A topic and its partitions, or the error for it."""

        error_code: i16 = 0
        name: str | None
        topic_id: UUID = field(ignorable=True)
        is_internal: bool = field(default=False, ignorable=True)
        partitions: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition]
        # bit n: operation n is allowed; the lowest int32: not requested
        topic_authorized_operations: i32 = -0x8000_0000

    class DescribeTopicPartitionsResponsePartition(Struct):
        """The replicas and the leader of one partition."""

        error_code: i16 = 0
        partition_index: i32
        leader_id: i32
        leader_epoch: i32 = field(default=-1, ignorable=True)
        replica_nodes: list[i32]
        isr_nodes: list[i32]
        eligible_leader_replicas: list[i32] | None = None  # not in sync, but they contain all committed records
        last_known_elr: list[i32] | None = None  # the last in-sync and eligible replicas before all of them were lost
        offline_replicas: list[i32] = field(ignorable=True)

    class Cursor(Struct):
        """The first partition of the next page."""

        topic_name: str
        partition_index: i32

    throttle_time_ms: i32 = field(default=0, ignorable=True)
    topics: list[DescribeTopicPartitionsResponseTopic]
    next_cursor: Cursor | None = None  # the start of the next page; None: this is the last page
