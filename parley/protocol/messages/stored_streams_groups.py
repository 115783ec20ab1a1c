"""Messages stored in ``__consumer_offsets`` for streams groups (KIP-1071).

A key's version is the kind of record: 17 a group, 19 a member, 20 the epoch of the target assignment, 21 a member's
target assignment, 22 a member's current assignment, 23 the topology.
"""

from __future__ import annotations

from parley.protocol.schema import Data, Struct, field, i8, i16, i32, i64, u16


class StreamsGroupMetadataKey(Data, versions="17"):
    """Key of a group."""

    group_id: str


class StreamsGroupMetadataValue(Data, versions="0", flexible="0+"):
    """The epoch of a group, and the versions and settings from which its assignment was computed."""

    class LastAssignmentConfig(Struct):
        """A setting of the group that influences the assignment."""

        key: str
        value: str

    epoch: i32
    metadata_hash: i64  # of the topics of the topology
    validated_topology_epoch: i32 = field(tag=0, tagged="0+", default=-1)  # of the topology whose topics all exist
    last_assignment_configs: list[LastAssignmentConfig] | None = field(tag=1, tagged="0+", default=[])


class StreamsGroupMemberMetadataKey(Data, versions="19"):
    """Key of a member."""

    group_id: str
    member_id: str


class StreamsGroupMemberMetadataValue(Data, versions="0", flexible="0+"):
    """A member, as its program describes itself."""

    class Endpoint(Struct):
        """The address at which the program serves queries about its state."""

        host: str
        port: u16

    class KeyValue(Struct):
        """A tag of the program, such as its zone."""

        key: str
        value: str

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: i32 = -1
    topology_epoch: i32
    process_id: str
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue]


class StreamsGroupTargetAssignmentMetadataKey(Data, versions="20"):
    """Key of the epoch of a group's target assignment."""

    group_id: str


class StreamsGroupTargetAssignmentMetadataValue(Data, versions="0", flexible="0+"):
    """The epoch of a group's target assignment."""

    assignment_epoch: i32
    assignment_timestamp: i64 = field(tag=0, tagged="0+", default=0, ignorable=True)  # ms since 1970


class StreamsGroupTargetAssignmentMemberKey(Data, versions="21"):
    """Key of a member's target assignment."""

    group_id: str
    member_id: str


class StreamsGroupTargetAssignmentMemberValue(Data, versions="0", flexible="0+"):
    """A member's target assignment."""

    class TaskIds(Struct):
        """Tasks of one subtopology."""

        subtopology_id: str
        partitions: list[i32]

    active_tasks: list[TaskIds]
    standby_tasks: list[TaskIds]
    warmup_tasks: list[TaskIds]


class StreamsGroupCurrentMemberAssignmentKey(Data, versions="22"):
    """Key of a member's current assignment."""

    group_id: str
    member_id: str


class StreamsGroupCurrentMemberAssignmentValue(Data, versions="0", flexible="0+"):
    """A member's current tasks, and the tasks that it must release first."""

    class TaskIds(Struct):
        """Tasks of one subtopology."""

        subtopology_id: str
        partitions: list[i32]
        assignment_epochs: list[i32] | None = field(tag=0, tagged="0+", default=[])  # of active tasks only

    member_epoch: i32
    previous_member_epoch: i32
    state: i8
    active_tasks: list[TaskIds]
    standby_tasks: list[TaskIds]
    warmup_tasks: list[TaskIds]
    active_tasks_pending_revocation: list[TaskIds]
    standby_tasks_pending_revocation: list[TaskIds]
    warmup_tasks_pending_revocation: list[TaskIds]


class StreamsGroupTopologyKey(Data, versions="23"):
    """Key of a group's topology."""

    group_id: str


class StreamsGroupTopologyValue(Data, versions="0", flexible="0+"):
    """The topology of the application."""

    class TopicConfig(Struct):
        """A setting of a topic that is created for the application."""

        key: str
        value: str

    class TopicInfo(Struct):
        """A topic that is created for the application."""

        name: str
        partitions: i32  # 0: derived from the other topics
        replication_factor: i16  # 0: the broker's default
        topic_configs: list[StreamsGroupTopologyValue.TopicConfig]

    class CopartitionGroup(Struct):
        """Topics that must have the same number of partitions, as positions in the subtopology's lists."""

        source_topics: list[i16]
        source_topic_regex: list[i16]
        repartition_source_topics: list[i16]

    class Subtopology(Struct):
        """A part of the topology whose tasks are assigned together."""

        subtopology_id: str
        source_topics: list[str]
        source_topic_regex: list[str]
        state_changelog_topics: list[StreamsGroupTopologyValue.TopicInfo]
        repartition_sink_topics: list[str]
        repartition_source_topics: list[StreamsGroupTopologyValue.TopicInfo]
        copartition_groups: list[StreamsGroupTopologyValue.CopartitionGroup]

    epoch: i32
    subtopologies: list[Subtopology]
