"""The new consumer group protocol: the coordinator itself assigns partitions, in heartbeat responses (KIP-848)."""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i8, i16, i32
from parley.protocol.uuids import UUID


class ConsumerGroupHeartbeatRequest(Request, key=68, versions="0-1", flexible="0+"):
    """Join, stay in or leave a group; unchanged values are left out (KIP-848).

    Versions:
        1: subscribed_topic_regex, matched by the broker (KIP-848); the member chooses its own id (KIP-1082).
    """

    class TopicPartitions(Struct):
        """The member's partitions of one topic."""

        topic_id: UUID
        partitions: list[i32]

    group_id: str
    member_id: str  # v0: empty, and the broker assigns one; later: a UUID that the member generated
    member_epoch: i32  # 0: join; -1: leave; -2: a static member leaves for a while
    instance_id: str | None = None  # None: a dynamic member, or unchanged
    rack_id: str | None = None  # None: none, or unchanged
    rebalance_timeout_ms: i32 = -1  # -1: unchanged
    subscribed_topic_names: list[str] | None = None  # None: unchanged
    subscribed_topic_regex: str | None = field("1+", default=None)  # in the syntax of RE2/J; None: unchanged
    server_assignor: str | None = None  # None: the broker chooses, or unchanged
    topic_partitions: list[TopicPartitions] | None = None  # the member's current partitions; None: unchanged


class ConsumerGroupHeartbeatResponse(Response, key=68, versions="0-1", flexible="0+"):
    """The member's epoch, and its assignment if that changed.

    Versions:
        1: INVALID_REGULAR_EXPRESSION may occur (KIP-848).
    """

    class Assignment(Struct):
        """All partitions that the member may use from now on."""

        topic_partitions: list[ConsumerGroupHeartbeatResponse.TopicPartitions]

    class TopicPartitions(Struct):
        """The member's partitions of one topic."""

        topic_id: UUID
        partitions: list[i32]

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    member_id: str | None = None  # None on error
    member_epoch: i32
    heartbeat_interval_ms: i32  # when to send the next heartbeat
    assignment: Assignment | None = None  # None: unchanged


class ConsumerGroupDescribeRequest(Request, key=69, versions="0-1", flexible="0+"):
    """Request the state and the members of consumer groups (KIP-848).

    Versions:
        1: the response has member types (KIP-1099).
    """

    group_ids: list[str]
    include_authorized_operations: bool = False


class ConsumerGroupDescribeResponse(Response, key=69, versions="0-1", flexible="0+"):
    """The state and the members of the requested groups.

    Versions:
        1: member_type, while a group moves from the classic protocol (KIP-1099).
    """

    class DescribedGroup(Struct):
        """A group, as its coordinator describes it."""

        error_code: i16 = 0
        error_message: str | None = None
        group_id: str
        group_state: str  # Empty, Assigning, Reconciling, Stable or Dead
        group_epoch: i32
        assignment_epoch: i32
        assignor_name: str
        members: list[ConsumerGroupDescribeResponse.Member]
        authorized_operations: i32 = -0x8000_0000  # bit n: operation n is allowed; the lowest int32: not requested

    class Member(Struct):
        """A member of the group, with its subscription and its assignments."""

        member_id: str
        instance_id: str | None = None  # None: a dynamic member
        rack_id: str | None = None
        member_epoch: i32
        client_id: str
        client_host: str
        subscribed_topic_names: list[str]
        subscribed_topic_regex: str | None = None
        assignment: ConsumerGroupDescribeResponse.Assignment  # the current assignment
        target_assignment: ConsumerGroupDescribeResponse.Assignment  # the target assignment
        member_type: i8 = field("1+", default=-1, ignorable=True)  # -1: unknown; 0: classic; 1: consumer

    class Assignment(Struct):
        """The partitions of one member."""

        topic_partitions: list[ConsumerGroupDescribeResponse.TopicPartitions]

    class TopicPartitions(Struct):
        """Partitions of one topic."""

        topic_id: UUID
        topic_name: str
        partitions: list[i32]

    throttle_time_ms: i32 = 0
    groups: list[DescribedGroup]
