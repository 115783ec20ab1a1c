"""Messages stored in records: committed offsets, groups, transactions, control batches, consumers' protocol data.

Keys and values in ``__consumer_offsets`` and ``__transaction_state`` start with an int16, the version in which the rest
is encoded. In a key, the version also identifies the kind of record: 0 and 1 an offset, 2 a classic group. A record
with a null value deletes its key. ConsumerProtocol data also starts with a version; a reader treats an unknown version
as the highest version that it knows, and ignores the bytes that follow.
"""

from __future__ import annotations

from parley.protocol.schema import ZERO_UUID, Data, Struct, field, i8, i16, i32, i64
from parley.protocol.uuids import UUID


class OffsetCommitKey(Data, versions="0-1"):
    """Key of a committed offset.

    Versions:
        1: same layout; values with an expire_timestamp (0.9).
    """

    group: str
    topic: str
    partition: i32


class OffsetCommitValue(Data, versions="0-4", flexible="4+"):
    """A committed offset.

    Versions:
        1: expire_timestamp, from the request's retention time (0.9).
        2: no expire_timestamp: offsets are kept while their group exists (KIP-211).
        3: leader_epoch (KIP-320).
        4: flexible encoding, which older brokers can skip (KIP-915); topic_id (KIP-848).
    """

    offset: i64
    leader_epoch: i32 = field("3+", default=-1, ignorable=True)  # of the last record read; -1: unknown
    metadata: str
    commit_timestamp: i64  # milliseconds since 1970
    expire_timestamp: i64 = field("1", default=-1, ignorable=True)  # -1: the broker's configuration applies
    topic_id: UUID = field("4+", tag=0, tagged="4+", default=ZERO_UUID, ignorable=True)


class GroupMetadataKey(Data, versions="2"):
    """Key of a classic group."""

    group: str


class GroupMetadataValue(Data, versions="0-4", flexible="4+"):
    """A classic group between rebalances: its generation, its members and their assignments.

    Versions:
        1: rebalance_timeout of each member (KIP-62).
        2: current_state_timestamp, from which the retention time of an empty group's offsets starts (KIP-211).
        3: group_instance_id of static members (KIP-345).
        4: flexible encoding, which older brokers can skip (KIP-915).
    """

    class MemberMetadata(Struct):
        """A member of the group in this generation, with its metadata and its assignment."""

        member_id: str
        group_instance_id: str | None = field("3+", default=None, ignorable=True)
        client_id: str
        client_host: str
        rebalance_timeout: i32 = field("1+", default=-1, ignorable=True)  # ms; -1: the session timeout applies
        session_timeout: i32  # milliseconds
        subscription: bytes
        assignment: bytes

    protocol_type: str
    generation: i32
    protocol: str | None  # None: empty group
    leader: str | None  # None: empty group
    current_state_timestamp: i64 = field("2+", default=-1, ignorable=True)  # milliseconds since 1970; -1: unknown
    members: list[MemberMetadata]


class TransactionLogKey(Data, versions="0"):
    """Key of a transactional id."""

    transactional_id: str


class TransactionLogValue(Data, versions="0-1", flexible="1+"):
    """The state of a transactional id.

    Versions:
        1: flexible encoding, which older brokers can skip (KIP-915); previous and next ids and epochs (KIP-890).
    """

    class PartitionsSchema(Struct):
        """The partitions of one topic."""

        topic: str
        partition_ids: list[i32]

    producer_id: i64
    previous_producer_id: i64 = field("1+", tag=0, tagged="1+", default=-1)
    next_producer_id: i64 = field("1+", tag=1, tagged="1+", default=-1)
    producer_epoch: i16
    next_producer_epoch: i16 = field("1+", tag=3, tagged="1+", default=-1)
    transaction_timeout_ms: i32
    # 0 empty, 1 ongoing, 2 and 3 prepared to commit and abort, 4 and 5 committed and aborted, 6 dead, 7 fencing
    transaction_status: i8
    transaction_partitions: list[PartitionsSchema] | None  # None: none
    transaction_last_update_timestamp_ms: i64
    transaction_start_timestamp_ms: i64
    client_transaction_version: i16 = field("1+", tag=2, tagged="1+", default=0)


class ControlRecordTypeSchema(Data, versions="0"):
    """Key of a record in a control batch, after an int16 version: 0 abort, 1 commit, 2 leader change."""

    type: i16


class EndTxnMarker(Data, versions="0"):
    """Value of an abort or commit marker, after an int16 version (KIP-98)."""

    coordinator_epoch: i32


class LeaderChangeMessage(Data, versions="0-1", flexible="0+"):
    """Value of a control record that starts a new leader's epoch in the metadata log (KIP-595).

    Versions:
        1: voter_directory_id (KIP-853).
    """

    class Voter(Struct):
        """A voter, by its id."""

        voter_id: i32
        voter_directory_id: UUID = field("1+", default=ZERO_UUID)

    version: i16
    leader_id: i32
    voters: list[Voter]
    granting_voters: list[Voter]


class ConsumerProtocolSubscription(Data, versions="0-3"):
    """A consumer's subscription for the group's leader: the metadata in JoinGroup.

    Versions:
        1: owned_partitions, for rebalances that move few partitions (KIP-429).
        2: generation_id of owned_partitions, to recognize outdated ones (KIP-792).
        3: rack_id (KIP-881).
    """

    class TopicPartition(Struct):
        """Partitions of one topic."""

        topic: str
        partitions: list[i32]

    topics: list[str]
    user_data: bytes | None = None
    owned_partitions: list[TopicPartition] = field("1+", default=[], ignorable=True)
    generation_id: i32 = field("2+", default=-1, ignorable=True)  # -1: unknown
    rack_id: str | None = field("3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Data, versions="0-3"):
    """A consumer's assignment from the group's leader: the assignment in SyncGroup.

    Versions:
        1: same layout; owned_partitions in the subscription (KIP-429).
        2: same layout; generation_id in the subscription (KIP-792).
        3: same layout; rack_id in the subscription (KIP-881).
    """

    class TopicPartition(Struct):
        """Partitions of one topic."""

        topic: str
        partitions: list[i32]

    assigned_partitions: list[TopicPartition]
    user_data: bytes | None = None


class DefaultPrincipalData(Data, versions="0", flexible="0+"):
    """The principal of a client whose request is in an envelope (KIP-590)."""

    type: str
    name: str
    token_authenticated: bool  # the client has logged in to the forwarding broker with a delegation token
