"""The protocol's error codes, and the exceptions that carry them.

``ErrorCode`` is the whole table of Apache Kafka 4.3. "Retriable" has the same meaning as in Kafka's clients: the same
request may succeed later, perhaps after a metadata request.

``KafkaError`` carries an error code of the protocol. ``MalformedMessage`` means that bytes are not a valid message, so
nothing after them on the same connection can be trusted.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = ["ErrorCode", "KafkaError", "MalformedMessage"]

RETRIABLE: Final = True


class ErrorCode(IntEnum):
    """An error code of the wire protocol, with its meaning.

    A code that is not in the table, from a newer broker, becomes UNKNOWN_SERVER_ERROR.
    """

    retriable: bool
    message: str

    def __new__(cls, code: int, message: str = "", retriable: bool = False) -> ErrorCode:
        self = int.__new__(cls, code)
        self._value_ = code
        self.message = message
        self.retriable = retriable
        return self

    @classmethod
    def _missing_(cls, value: object) -> ErrorCode | None:
        return cls.UNKNOWN_SERVER_ERROR if isinstance(value, int) else None

    UNKNOWN_SERVER_ERROR = -1, "An unexpected error occurred in the broker; see its log."
    NONE = 0, "No error."
    OFFSET_OUT_OF_RANGE = 1, "The offset is before the start or after the end of the log."
    CORRUPT_MESSAGE = (
        2,
        "The records are corrupt: wrong checksum, wrong size, or no key although the topic is compacted.",
        RETRIABLE,
    )
    UNKNOWN_TOPIC_OR_PARTITION = 3, "This broker has no such topic or partition.", RETRIABLE
    INVALID_FETCH_SIZE = 4, "The requested fetch size is not allowed."
    LEADER_NOT_AVAILABLE = 5, "The partition currently has no leader.", RETRIABLE
    NOT_LEADER_OR_FOLLOWER = (
        6,
        "This broker is not the partition's leader, or has no replica of the partition.",
        RETRIABLE,
    )
    REQUEST_TIMED_OUT = 7, "The request was not completed within its time limit.", RETRIABLE
    BROKER_NOT_AVAILABLE = 8, "The broker is currently not reachable."
    REPLICA_NOT_AVAILABLE = 9, "The replica of the partition is not available.", RETRIABLE
    MESSAGE_TOO_LARGE = 10, "A record batch is larger than the topic allows (max.message.bytes)."
    STALE_CONTROLLER_EPOCH = 11, "Another broker has become controller."
    OFFSET_METADATA_TOO_LARGE = (
        12,
        "The metadata string committed with an offset is too long (offset.metadata.max.bytes).",
    )
    NETWORK_EXCEPTION = 13, "The connection ended before the response arrived.", RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, "The coordinator is still loading its state; try again.", RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, "The group or transaction currently has no coordinator.", RETRIABLE
    NOT_COORDINATOR = 16, "This broker is not the coordinator; look up the coordinator again.", RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17, "The topic's name is not valid, or the topic must not be used this way."
    RECORD_LIST_TOO_LARGE = 18, "The batches are larger than a segment of the log (segment.bytes)."
    NOT_ENOUGH_REPLICAS = 19, "Fewer replicas are in sync than min.insync.replicas; nothing was written.", RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        "The records were written, but to fewer in-sync replicas than min.insync.replicas.",
        RETRIABLE,
    )
    INVALID_REQUIRED_ACKS = 21, "acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, "The group has another generation."
    INCONSISTENT_GROUP_PROTOCOL = (
        23,
        "The member's protocol type or protocols have nothing in common with those of the group.",
    )
    INVALID_GROUP_ID = 24, "The group id is not valid."
    UNKNOWN_MEMBER_ID = 25, "The coordinator does not know this member."
    INVALID_SESSION_TIMEOUT = (
        26,
        "The session timeout is not between group.min.session.timeout.ms and group.max.session.timeout.ms.",
    )
    REBALANCE_IN_PROGRESS = 27, "The group is rebalancing; the member must join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, "The offsets of this commit are too large to be stored."
    TOPIC_AUTHORIZATION_FAILED = 29, "Not authorized for this topic."
    GROUP_AUTHORIZATION_FAILED = 30, "Not authorized for this group."
    CLUSTER_AUTHORIZATION_FAILED = 31, "Not authorized for this operation on the cluster."
    INVALID_TIMESTAMP = 32, "A record's timestamp is further from the broker's clock than the topic allows."
    UNSUPPORTED_SASL_MECHANISM = 33, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, "The request does not fit the state of the SASL exchange."
    UNSUPPORTED_VERSION = 35, "This version of the API, or this use of it, is not supported."
    TOPIC_ALREADY_EXISTS = 36, "A topic with this name already exists."
    INVALID_PARTITIONS = 37, "The number of partitions is not valid."
    INVALID_REPLICATION_FACTOR = 38, "The replication factor is below 1 or above the number of available brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, "The assignment of replicas to brokers is not valid."
    INVALID_CONFIG = 40, "The configuration is not valid."
    NOT_CONTROLLER = 41, "This broker is not the controller.", RETRIABLE
    INVALID_REQUEST = 42, "The request contradicts itself or is malformed."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "The records are stored in a format too old for this request."
    POLICY_VIOLATION = 44, "The broker's policy rejects these parameters."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "The producer's sequence number does not follow the last one."
    DUPLICATE_SEQUENCE_NUMBER = 46, "The producer's sequence number was used before."
    INVALID_PRODUCER_EPOCH = 47, "The producer's epoch is old."
    INVALID_TXN_STATE = 48, "The transaction is not in a state that allows this."
    INVALID_PRODUCER_ID_MAPPING = 49, "The producer id does not belong to this transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, "The transaction timeout is above transaction.max.timeout.ms."
    CONCURRENT_TRANSACTIONS = 51, "Another operation on this transaction is still in progress.", RETRIABLE
    TRANSACTION_COORDINATOR_FENCED = 52, "The coordinator that sent the markers has been replaced."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "Not authorized for this transactional id."
    SECURITY_DISABLED = 54, "Security is not enabled on the broker."
    OPERATION_NOT_ATTEMPTED = 55, "Not attempted, because another operation of the same request failed."
    KAFKA_STORAGE_ERROR = 56, "The disk of this log has failed.", RETRIABLE
    LOG_DIR_NOT_FOUND = 57, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, "SASL authentication failed."
    UNKNOWN_PRODUCER_ID = 59, "The broker does not know this producer id; its records may have been deleted."
    REASSIGNMENT_IN_PROGRESS = 60, "A reassignment of the partition is in progress."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "Delegation tokens are not enabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "The principal is neither the token's owner nor one of its renewers."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        "Delegation tokens are issued only on connections authenticated by other means.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "Not authorized for this delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, "This type of principal is not supported."
    NON_EMPTY_GROUP = 68, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, "There is no such fetch session; start a new one.", RETRIABLE
    INVALID_FETCH_SESSION_EPOCH = 71, "The fetch session has another epoch.", RETRIABLE
    LISTENER_NOT_FOUND = 72, "The leader has no listener with the name of the listener of this connection.", RETRIABLE
    TOPIC_DELETION_DISABLED = 73, "Topic deletion is disabled (delete.topic.enable)."
    FENCED_LEADER_EPOCH = 74, "The leader epoch in the request is older than the broker's.", RETRIABLE
    UNKNOWN_LEADER_EPOCH = 75, "The leader epoch in the request is newer than the broker's.", RETRIABLE
    UNSUPPORTED_COMPRESSION_TYPE = (
        76,
        "This version of the request does not support the partition's compression.",
    )
    STALE_BROKER_EPOCH = 77, "The broker has registered again meanwhile, with another epoch."
    OFFSET_NOT_AVAILABLE = (
        78,
        "The new leader's high watermark has not caught up; offsets might seem to go backward.",
        RETRIABLE,
    )
    MEMBER_ID_REQUIRED = 79, "The member must join again with the member id in this response."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "The preferred leader is not available.", RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81, "The group already has group.max.size members."
    FENCED_INSTANCE_ID = 82, "Another member has taken this group.instance.id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "No replica that is eligible as leader is available.", RETRIABLE
    ELECTION_NOT_NEEDED = 84, "The partition already has the requested leader.", RETRIABLE
    NO_REASSIGNMENT_IN_PROGRESS = 85, "No reassignment of the partition is in progress."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "The group is subscribed to the topic, so its offsets cannot be deleted."
    INVALID_RECORD = 87, "The broker rejects a record; the response says which record and why."
    UNSTABLE_OFFSET_COMMIT = 88, "Offsets of a transaction that has not ended are pending; try again.", RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = (
        89,
        "The quota for such requests is exceeded; try again after the throttle time.",
        RETRIABLE,
    )
    PRODUCER_FENCED = 90, "A newer producer uses this transactional id."
    RESOURCE_NOT_FOUND = 91, "There is no such resource."
    DUPLICATE_RESOURCE = 92, "The request contains the same resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, "The credential does not meet the requirements."
    INCONSISTENT_VOTER_SET = 94, "The sender or the receiver is not in the other's set of voters."
    INVALID_UPDATE_VERSION = 95, "The version of the feature is not valid."
    FEATURE_UPDATE_FAILED = 96, "The feature could not be changed."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "The principal of a forwarded request cannot be read."
    SNAPSHOT_NOT_FOUND = 98, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, "The position is outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, "This broker has no topic with this id.", RETRIABLE
    DUPLICATE_BROKER_REGISTRATION = 101, "A live broker with this id is registered."
    BROKER_ID_NOT_REGISTERED = 102, "No broker with this id is registered."
    INCONSISTENT_TOPIC_ID = 103, "The log belongs to another topic id.", RETRIABLE
    INCONSISTENT_CLUSTER_ID = 104, "The request is meant for another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "The fetch session mixes requests with and without topic ids.", RETRIABLE
    INELIGIBLE_REPLICA = 107, "A replica of the new ISR is not eligible for the ISR."
    NEW_LEADER_ELECTED = 108, "The change has resulted in a new leader of the partition."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "The offset is in tiered storage only."
    FENCED_MEMBER_EPOCH = 110, "The member's epoch is fenced: the member must release its partitions and join again."
    UNRELEASED_INSTANCE_ID = 111, "Another member of the group still has this instance id."
    UNSUPPORTED_ASSIGNOR = 112, "The group does not support this assignor or this version of it."
    STALE_MEMBER_EPOCH = 113, "The member's epoch is old; the response to its next heartbeat contains the new one."
    MISMATCHED_ENDPOINT_TYPE = 114, "The request was sent to the wrong kind of endpoint."
    UNSUPPORTED_ENDPOINT_TYPE = 115, "This kind of endpoint is not supported."
    UNKNOWN_CONTROLLER_ID = 116, "No controller with this id is known."
    UNKNOWN_SUBSCRIPTION_ID = 117, "The telemetry subscription id is unknown or no longer valid."
    TELEMETRY_TOO_LARGE = 118, "The telemetry is larger than the broker accepts."
    INVALID_REGISTRATION = 119, "The controller rejects the broker's registration."
    TRANSACTION_ABORTABLE = (
        120,
        "An error occurred in the transaction; after an abort, the transactional id can be used again.",
    )
    INVALID_RECORD_STATE = 121, "The record is not in a state that can be acknowledged."
    SHARE_SESSION_NOT_FOUND = 122, "There is no such share session.", RETRIABLE
    INVALID_SHARE_SESSION_EPOCH = 123, "The share session has another epoch.", RETRIABLE
    FENCED_STATE_EPOCH = 124, "The share group's state has another epoch."
    INVALID_VOTER_KEY = 125, "The voter's key is not the key of the replica that received the request."
    DUPLICATE_VOTER = 126, "The voter is already in the set."
    VOTER_NOT_FOUND = 127, "The voter is not in the set."
    INVALID_REGULAR_EXPRESSION = 128, "The regular expression cannot be compiled."
    REBOOTSTRAP_REQUIRED = 129, "The client's view of the cluster is too old; it must start from its bootstrap servers."
    STREAMS_INVALID_TOPOLOGY = 130, "The streams topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "The epoch of the streams topology is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, "The epoch of the streams topology is old."
    SHARE_SESSION_LIMIT_REACHED = 133, "The broker has reached its limit of share sessions.", RETRIABLE


class KafkaError(Exception):
    """A failure with its error code. ``message`` gives more detail; by default, it is the meaning of the code."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message or code.message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


def check_code(code: int, what: str) -> None:
    """Raise KafkaError unless ``code``, an error code from a response, is 0. ``what`` describes the request, and
    becomes the message of the error."""
    if code:
        raise KafkaError(ErrorCode(code), what)


class MalformedMessage(Exception):
    """Bytes cannot be decoded as the expected message. The connection from which they came must be closed."""


class TooManyElements(MalformedMessage):
    """The arrays of a message contain more elements than Parley or the caller of the decoder allows."""
