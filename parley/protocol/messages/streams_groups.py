"""Streams groups: Kafka Streams applications whose tasks the coordinator assigns (KIP-1071).

A topology consists of subtopologies; a task is one partition of a subtopology's input. Active tasks do the work,
standby tasks keep a copy of the state, warm-up tasks catch up before they take over.
"""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, i8, i16, i32, i64, u16


class StreamsGroupHeartbeatRequest(Request, key=88, versions="0", flexible="0+"):
    """Join, stay in or leave a streams group; unchanged values are left out (KIP-1071)."""

    class Topology(Struct):
        """The topology of the application."""

        epoch: i32  # increases when the application's topology changes
        subtopologies: list[StreamsGroupHeartbeatRequest.Subtopology]

    class Subtopology(Struct):
        """A part of the topology whose tasks are assigned together."""

        subtopology_id: str
        source_topics: list[str]
        source_topic_regex: list[str]
        state_changelog_topics: list[StreamsGroupHeartbeatRequest.TopicInfo]
        repartition_sink_topics: list[str]
        repartition_source_topics: list[StreamsGroupHeartbeatRequest.TopicInfo]
        copartition_groups: list[StreamsGroupHeartbeatRequest.CopartitionGroup]

    class TopicInfo(Struct):
        """A topic that must be created for the application."""

        name: str
        partitions: i32  # 0: derived from the other topics
        replication_factor: i16  # 0: the broker's default
        topic_configs: list[StreamsGroupHeartbeatRequest.KeyValue]

    class KeyValue(Struct):
        """A setting of a topic, or a tag of the program."""

        key: str
        value: str

    class CopartitionGroup(Struct):
        """Topics that must have the same number of partitions, as positions in the subtopology's lists."""

        source_topics: list[i16]
        source_topic_regex: list[i16]
        repartition_source_topics: list[i16]

    class TaskIds(Struct):
        """Tasks of one subtopology."""

        subtopology_id: str
        partitions: list[i32]

    class Endpoint(Struct):
        """The endpoint at which a program serves queries."""

        host: str
        port: u16

    class TaskOffset(Struct):
        """The offset of one task, summed over its changelogs."""

        subtopology_id: str
        partition: i32
        offset: i64

    group_id: str
    member_id: str  # a UUID that the member generated
    member_epoch: i32  # 0: join; -1: leave; -2: a static member leaves for a while
    endpoint_information_epoch: i32  # of the last partitions_by_user_endpoint received
    instance_id: str | None = None  # None: a dynamic member, or unchanged
    rack_id: str | None = None  # None: none, or unchanged
    rebalance_timeout_ms: i32 = -1  # -1: unchanged
    topology: Topology | None = None  # only when joining
    active_tasks: list[TaskIds] | None = None  # None: unchanged, like the next two
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    process_id: str | None = None  # the program, which may have several members; None: unchanged
    user_endpoint: Endpoint | None = None  # for queries about the program's state; None: none, or unchanged
    client_tags: list[KeyValue] | None = None  # to place a task's replicas on different hosts; None: unchanged
    task_offsets: list[TaskOffset] | None = None  # the offsets of the copies in their changelogs; None: unchanged
    task_end_offsets: list[TaskOffset] | None = None  # the end offsets of the changelogs; None: unchanged
    shutdown_application: bool = False  # shut down all members of the group


class StreamsGroupHeartbeatResponse(Response, key=88, versions="0", flexible="0+"):
    """The member's epoch, and its tasks if they changed."""

    class Status(Struct):
        """A status message for the member."""

        # 0 stale topology, 1 source topics missing, 2 wrong partitions, 3 internal topics missing, 4 shutting down, 5
        # assignment delayed
        status_code: i8
        status_detail: str

    class TaskIds(Struct):
        """Tasks of one subtopology."""

        subtopology_id: str
        partitions: list[i32]

    class EndpointToPartitions(Struct):
        """The partitions that an endpoint serves."""

        user_endpoint: StreamsGroupHeartbeatResponse.Endpoint
        active_partitions: list[StreamsGroupHeartbeatResponse.TopicPartition]
        standby_partitions: list[StreamsGroupHeartbeatResponse.TopicPartition]

    class Endpoint(Struct):
        """The endpoint at which a program serves queries."""

        host: str
        port: u16

    class TopicPartition(Struct):
        """Partitions of one topic."""

        topic: str
        partitions: list[i32]

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    member_id: str
    member_epoch: i32
    heartbeat_interval_ms: i32  # how long to wait before the next heartbeat
    acceptable_recovery_lag: i32  # a warm-up task this close to the end has caught up
    task_offset_interval_ms: i32  # how often to send task_offsets
    status: list[Status] | None  # the problems of the group, if any
    active_tasks: list[TaskIds] | None = None  # None: unchanged, like the next two
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    endpoint_information_epoch: i32  # of partitions_by_user_endpoint
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = None  # None: unchanged


class StreamsGroupDescribeRequest(Request, key=89, versions="0", flexible="0+"):
    """Request the state, topology and members of streams groups (KIP-1071)."""

    group_ids: list[str]
    include_authorized_operations: bool = False


class StreamsGroupDescribeResponse(Response, key=89, versions="0", flexible="0+"):
    """The state, topology and members of the requested groups."""

    class DescribedGroup(Struct):
        """A streams group, as its coordinator describes it."""

        error_code: i16 = 0
        error_message: str | None = None
        group_id: str
        group_state: str  # Empty, NotReady, Assigning, Reconciling, Stable or Dead
        group_epoch: i32
        assignment_epoch: i32
        topology: StreamsGroupDescribeResponse.Topology | None = None  # None on error
        members: list[StreamsGroupDescribeResponse.Member]
        authorized_operations: i32 = -0x8000_0000  # bit n: operation n is allowed; the lowest int32: not requested

    class Topology(Struct):
        """The topology of the application."""

        epoch: i32
        # None: not yet set up, or source topics are missing or wrong
        subtopologies: list[StreamsGroupDescribeResponse.Subtopology] | None = None

    class Subtopology(Struct):
        """A part of the topology, with all its resolved topics."""

        subtopology_id: str
        source_topics: list[str]
        repartition_sink_topics: list[str]
        state_changelog_topics: list[StreamsGroupDescribeResponse.TopicInfo]
        repartition_source_topics: list[StreamsGroupDescribeResponse.TopicInfo]

    class TopicInfo(Struct):
        """A topic that must be created for the application."""

        name: str
        partitions: i32  # 0: derived from the other topics
        replication_factor: i16  # 0: the broker's default
        topic_configs: list[StreamsGroupDescribeResponse.KeyValue]

    class KeyValue(Struct):
        """A setting of a topic, or a tag of the program."""

        key: str
        value: str

    class Member(Struct):
        """A member of the group, with its tasks."""

        member_id: str
        member_epoch: i32
        instance_id: str | None = None  # None: a dynamic member
        rack_id: str | None = None
        client_id: str
        client_host: str
        topology_epoch: i32
        process_id: str
        user_endpoint: StreamsGroupDescribeResponse.Endpoint | None = None
        client_tags: list[StreamsGroupDescribeResponse.KeyValue]
        task_offsets: list[StreamsGroupDescribeResponse.TaskOffset]
        task_end_offsets: list[StreamsGroupDescribeResponse.TaskOffset]
        assignment: StreamsGroupDescribeResponse.Assignment  # the current assignment
        target_assignment: StreamsGroupDescribeResponse.Assignment  # the target assignment
        is_classic: bool  # the member still uses the classic group protocol

    class Endpoint(Struct):
        """The endpoint at which a program serves queries."""

        host: str
        port: u16

    class TaskOffset(Struct):
        """The offset of one task, summed over its changelogs."""

        subtopology_id: str
        partition: i32
        offset: i64

    class Assignment(Struct):
        """The tasks of one member."""

        active_tasks: list[StreamsGroupDescribeResponse.TaskIds]
        standby_tasks: list[StreamsGroupDescribeResponse.TaskIds]
        warmup_tasks: list[StreamsGroupDescribeResponse.TaskIds]

    class TaskIds(Struct):
        """Tasks of one subtopology."""

        subtopology_id: str
        partitions: list[i32]

    throttle_time_ms: i32 = 0
    groups: list[DescribedGroup]
