"""The classic group protocol: finding the coordinator, membership, and listing the groups.

Members join, and one of them, the leader, assigns the partitions. All members fetch their assignments with SyncGroup
and then send heartbeats. The coordinator never interprets the members' ``metadata`` and ``assignment``.
"""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i8, i16, i32


class FindCoordinatorRequest(Request, key=10, versions="0-6", flexible="3+"):
    """Request the coordinator of a group, a transactional id or a share group's partition.

    Versions:
        1: key_type, because transactional ids also have coordinators (KIP-98).
        2: the client enforces throttle_time_ms itself (KIP-219).
        3: flexible encoding (KIP-482).
        4: several keys at once (KIP-699).
        5: the sender understands TRANSACTION_ABORTABLE (KIP-890).
        6: key type 2, a share group's partition, written ``group:topic id:partition`` (KIP-932).
    """

    key: str = field("0-3", default="")  # group id or transactional id
    key_type: i8 = field("1+", default=0)  # 0: group; 1: transactional id; 2: share group's partition
    coordinator_keys: list[str] = field("4+", default=[])  # of the type key_type


class FindCoordinatorResponse(Response, key=10, versions="0-6", flexible="3+"):
    """The requested coordinators.

    Versions:
        1: throttle_time_ms (KIP-124) and error_message (KIP-98).
        2: sent before the client is throttled, not after (KIP-219).
        3: flexible encoding (KIP-482).
        4: one result per key, each with its own error (KIP-699).
        5: TRANSACTION_ABORTABLE may occur (KIP-890).
        6: same layout; share groups (KIP-932).
    """

    class Coordinator(Struct):
        """The coordinator of one key."""

        key: str
        node_id: i32  # -1 on error
        host: str
        port: i32
        error_code: i16 = 0
        error_message: str | None = field(default=None, ignorable=True)

    throttle_time_ms: i32 = field("1+", default=0, ignorable=True)
    error_code: i16 = field("0-3", default=0)
    error_message: str | None = field("1-3", default=None, ignorable=True)
    node_id: i32 = field("0-3", default=0)  # -1 on error
    host: str = field("0-3", default="")
    port: i32 = field("0-3", default=0)
    coordinators: list[Coordinator] = field("4+", default=[])


class JoinGroupRequest(Request, key=11, versions="0-9", flexible="6+"):
    """Join a group, or rejoin for a rebalance. The broker responds when all members have joined or the time is up.

    Versions:
        1: rebalance_timeout_ms, separate from the session timeout (KIP-62).
        2: the response says how long the client was throttled (KIP-124).
        3: the client enforces throttle_time_ms itself (KIP-219).
        4: a new member receives its id with MEMBER_ID_REQUIRED and joins again with it (KIP-394).
        5: group_instance_id: static members keep their place across a restart (KIP-345).
        6: flexible encoding (KIP-482).
        7: the response contains the protocol type (KIP-559).
        8: reason, for the broker's log (KIP-800).
        9: a static leader that returns may keep the assignment (KIP-814).
    """

    class JoinGroupRequestProtocol(Struct):
        """An assignment strategy that the member supports."""

        name: str
        metadata: bytes  # for consumers: a ConsumerProtocolSubscription

    group_id: str
    session_timeout_ms: i32  # a member silent for longer is removed
    # how long a rebalance waits for this member; -1: the session timeout applies
    rebalance_timeout_ms: i32 = field("1+", default=-1, ignorable=True)
    member_id: str  # empty: a new member
    group_instance_id: str | None = field("5+", default=None)  # None: a dynamic member
    protocol_type: str  # "consumer" for consumers, "connect" for Connect workers
    protocols: list[JoinGroupRequestProtocol]  # in the order of the member's preference
    reason: str | None = field("8+", default=None, ignorable=True)  # why the member joins


class JoinGroupResponse(Response, key=11, versions="0-9", flexible="6+"):
    """The new generation; for its leader, also the members to which it must assign partitions.

    Versions:
        1: same layout; the request has rebalance_timeout_ms (KIP-62).
        2: throttle_time_ms (KIP-124).
        3: sent before the client is throttled, not after (KIP-219).
        4: MEMBER_ID_REQUIRED may occur, with the id to join again with (KIP-394).
        5: the members' group_instance_id (KIP-345).
        6: flexible encoding (KIP-482).
        7: protocol_type; protocol_name may be None (KIP-559).
        8: same layout; the request gives a reason (KIP-800).
        9: skip_assignment: a static leader has returned, and nothing has changed (KIP-814).
    """

    class JoinGroupResponseMember(Struct):
        """A member and its metadata, from which the leader computes the assignment."""

        member_id: str
        group_instance_id: str | None = field("5+", default=None, ignorable=True)
        metadata: bytes  # the member's metadata for the chosen protocol

    throttle_time_ms: i32 = field("2+", default=0, ignorable=True)
    error_code: i16 = 0
    generation_id: i32 = -1  # -1 on error
    protocol_type: str | None = field("7+", default=None, ignorable=True)
    protocol_name: str | None = field(nullable="7+")
    leader: str  # member id of the leader
    skip_assignment: bool = field("9+", default=False)
    member_id: str
    members: list[JoinGroupResponseMember]  # empty for all but the leader


class HeartbeatRequest(Request, key=12, versions="0-4", flexible="4+"):
    """Keep a member's session alive. The response reports a rebalance.

    Versions:
        1: the response says how long the client was throttled (KIP-124).
        2: the client enforces throttle_time_ms itself (KIP-219).
        3: group_instance_id, to fence a second member with the same id (KIP-345).
        4: flexible encoding (KIP-482).
    """

    group_id: str
    generation_id: i32
    member_id: str
    group_instance_id: str | None = field("3+", default=None)  # None: a dynamic member


class HeartbeatResponse(Response, key=12, versions="0-4", flexible="4+"):
    """No error, REBALANCE_IN_PROGRESS if the member must join again, or another reason to leave or join again.

    Versions:
        1: throttle_time_ms (KIP-124).
        2: sent before the client is throttled, not after (KIP-219).
        3: FENCED_INSTANCE_ID may occur (KIP-345).
        4: flexible encoding (KIP-482).
    """

    throttle_time_ms: i32 = field("1+", default=0, ignorable=True)
    error_code: i16 = 0


class LeaveGroupRequest(Request, key=13, versions="0-5", flexible="4+"):
    """Remove members from a group without waiting until their sessions expire.

    Versions:
        1: the response says how long the client was throttled (KIP-124).
        2: the client enforces throttle_time_ms itself (KIP-219).
        3: several members at once, static ones by group_instance_id (KIP-345).
        4: flexible encoding (KIP-482).
        5: reason, for the broker's log (KIP-800).
    """

    class MemberIdentity(Struct):
        """A member to remove, by its member id or its group instance id."""

        member_id: str  # empty: the member with this group_instance_id
        group_instance_id: str | None = None
        reason: str | None = field("5+", default=None, ignorable=True)  # why the member leaves

    group_id: str
    member_id: str = field("0-2", default="")
    members: list[MemberIdentity] = field("3+", default=[])


class LeaveGroupResponse(Response, key=13, versions="0-5", flexible="4+"):
    """The outcome for each member to be removed.

    Versions:
        1: throttle_time_ms (KIP-124).
        2: sent before the client is throttled, not after (KIP-219).
        3: one outcome per member (KIP-345).
        4: flexible encoding (KIP-482).
        5: same layout; the request gives a reason (KIP-800).
    """

    class MemberResponse(Struct):
        """The outcome for one member."""

        member_id: str
        group_instance_id: str | None
        error_code: i16 = 0

    throttle_time_ms: i32 = field("1+", default=0, ignorable=True)
    error_code: i16 = 0
    members: list[MemberResponse] = field("3+", default=[])


class SyncGroupRequest(Request, key=14, versions="0-5", flexible="4+"):
    """Fetch a member's assignment. The leader's request contains the assignments of all members.

    Versions:
        1: the response says how long the client was throttled (KIP-124).
        2: the client enforces throttle_time_ms itself (KIP-219).
        3: group_instance_id, to fence a second member with the same id (KIP-345).
        4: flexible encoding (KIP-482).
        5: protocol_type and protocol_name, which the broker checks (KIP-559).
    """

    class SyncGroupRequestAssignment(Struct):
        """The assignment that the leader has chosen for a member."""

        member_id: str
        assignment: bytes  # for consumers: a ConsumerProtocolAssignment

    group_id: str
    generation_id: i32
    member_id: str
    group_instance_id: str | None = field("3+", default=None)  # None: a dynamic member
    protocol_type: str | None = field("5+", default=None, ignorable=True)
    protocol_name: str | None = field("5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment]  # empty from all but the leader


class SyncGroupResponse(Response, key=14, versions="0-5", flexible="4+"):
    """The member's assignment.

    Versions:
        1: throttle_time_ms (KIP-124).
        2: sent before the client is throttled, not after (KIP-219).
        3: FENCED_INSTANCE_ID may occur (KIP-345).
        4: flexible encoding (KIP-482).
        5: the protocol of the assignment; INCONSISTENT_GROUP_PROTOCOL may occur (KIP-559).
    """

    throttle_time_ms: i32 = field("1+", default=0, ignorable=True)
    error_code: i16 = 0
    protocol_type: str | None = field("5+", default=None, ignorable=True)
    protocol_name: str | None = field("5+", default=None, ignorable=True)
    assignment: bytes  # for consumers: a ConsumerProtocolAssignment


class DescribeGroupsRequest(Request, key=15, versions="0-6", flexible="5+"):
    """Request the state and the members of classic groups.

    Versions:
        1: the response says how long the client was throttled (KIP-124).
        2: the client enforces throttle_time_ms itself (KIP-219).
        3: authorized operations on request (KIP-430).
        4: the response has group_instance_id (KIP-345).
        5: flexible encoding (KIP-482).
        6: GROUP_ID_NOT_FOUND for an unknown group, instead of a group in state Dead (KIP-1043).
    """

    groups: list[str]
    include_authorized_operations: bool = field("3+", default=False)


class DescribeGroupsResponse(Response, key=15, versions="0-6", flexible="5+"):
    """The state and the members of the requested groups.

    Versions:
        1: throttle_time_ms (KIP-124).
        2: sent before the client is throttled, not after (KIP-219).
        3: authorized_operations (KIP-430).
        4: group_instance_id of static members (KIP-345).
        5: flexible encoding (KIP-482).
        6: error_message; GROUP_ID_NOT_FOUND may occur (KIP-1043).
    """

    class DescribedGroup(Struct):
        """A group, as its coordinator describes it."""

        error_code: i16 = 0
        error_message: str | None = field("6+", default=None)
        group_id: str
        group_state: str  # Empty, PreparingRebalance, CompletingRebalance, Stable or Dead
        protocol_type: str
        protocol_data: str  # the chosen protocol; empty unless the group is Stable
        members: list[DescribeGroupsResponse.DescribedGroupMember]
        # bit n: operation n is allowed; the lowest int32: not requested
        authorized_operations: i32 = field("3+", default=-0x8000_0000)

    class DescribedGroupMember(Struct):
        """A member of the group, with its metadata and its assignment."""

        member_id: str
        group_instance_id: str | None = field("4+", default=None, ignorable=True)
        client_id: str
        client_host: str
        member_metadata: bytes  # the metadata with which the member joined; empty unless the group is Stable
        member_assignment: bytes  # the leader's assignment; empty unless the group is Stable

    throttle_time_ms: i32 = field("1+", default=0, ignorable=True)
    groups: list[DescribedGroup]


class ListGroupsRequest(Request, key=16, versions="0-5", flexible="3+"):
    """Request the groups that a broker coordinates.

    Versions:
        1: the response says how long the client was throttled (KIP-124).
        2: the client enforces throttle_time_ms itself (KIP-219).
        3: flexible encoding (KIP-482).
        4: states_filter (KIP-518).
        5: types_filter, because there are now types other than classic (KIP-848).
    """

    states_filter: list[str] = field("4+", default=[])  # empty: all states
    types_filter: list[str] = field("5+", default=[])  # empty: all types


class ListGroupsResponse(Response, key=16, versions="0-5", flexible="3+"):
    """The groups that this broker coordinates.

    Versions:
        1: throttle_time_ms (KIP-124).
        2: sent before the client is throttled, not after (KIP-219).
        3: flexible encoding (KIP-482).
        4: group_state (KIP-518).
        5: group_type (KIP-848).
    """

    class ListedGroup(Struct):
        """A group that the broker coordinates."""

        group_id: str
        protocol_type: str
        group_state: str = field("4+", default="", ignorable=True)
        group_type: str = field("5+", default="", ignorable=True)  # classic, consumer, share or streams

    throttle_time_ms: i32 = field("1+", default=0, ignorable=True)
    error_code: i16 = 0
    groups: list[ListedGroup]


class DeleteGroupsRequest(Request, key=42, versions="0-2", flexible="2+"):
    """Delete groups without members, and their committed offsets (KIP-229).

    Versions:
        1: the client enforces throttle_time_ms itself (KIP-219).
        2: flexible encoding (KIP-482).
    """

    groups_names: list[str]


class DeleteGroupsResponse(Response, key=42, versions="0-2", flexible="2+"):
    """The outcome for each group to be deleted.

    Versions:
        1: sent before the client is throttled, not after (KIP-219).
        2: flexible encoding (KIP-482).
    """

    class DeletableGroupResult(Struct):
        """The outcome for one group."""

        group_id: str
        error_code: i16 = 0

    throttle_time_ms: i32 = 0
    results: list[DeletableGroupResult]
