"""The rights that each API requires: the table that all checks of clients' rights must match.

A row names an API, a type of resource, an operation, the resources of a request that need this right, and the effect of
lacking it. The checks of rights on the cluster as a whole (``WHOLE_CLUSTER``), the page ``docs/authorization.md`` and a
test are derived from the table. Guards and handlers make the other checks: ``Authorization`` raises LookupError if they
check a right that is not declared here. An API that is neither in the table nor in ``OPEN_TO_ALL`` is denied.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode
from parley.protocol.messages import APIS

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID, TOKEN, USER = ResourceType.TRANSACTIONAL_ID, ResourceType.DELEGATION_TOKEN, ResourceType.USER


class Effect(Enum):
    """What happens if the client lacks the right."""

    REFUSED = "the request is refused"
    """The whole request is refused; checked before the handler runs."""
    ELEMENT = "each such element is refused, the others are handled"
    LEFT_OUT = "each such element is left out of the response"
    OTHERWISE = "another row must allow it"
    """One of several rows suffices. The note of the row names the alternatives."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One row of the table. ``names`` describes the resources that need the right, ``note`` when the right
    is needed."""

    api_key: int
    type: ResourceType
    operation: Operation
    names: str
    effect: Effect
    error: ErrorCode
    note: str = ""

    @property
    def api(self) -> str:
        """The name of the API."""
        return APIS[self.api_key].name


_ERRORS: Final = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
_KEYS: Final = {api.name: key for key, api in APIS.items()}


def _row(
    api: str,
    type: ResourceType,
    operation: Operation,
    names: str = "the cluster",
    effect: Effect = Effect.REFUSED,
    note: str = "",
    error: ErrorCode | None = None,
) -> Requirement:
    return Requirement(_KEYS[api], type, operation, names, effect, error or _ERRORS[type], note)


_O, _E = Operation, Effect

OPEN_TO_ALL: Final[Mapping[int, str]] = {
    _KEYS[name]: why
    for name, why in (
        ("ApiVersions", "a client needs the versions before it can log in"),
        ("SaslHandshake", "it is part of the login"),
        ("SaslAuthenticate", "it is part of the login"),
        ("GetTelemetrySubscriptions", "it names no resource"),
        ("PushTelemetry", "it names no resource"),
    )
}
"""The APIs that every client may use, and why."""

REQUIREMENTS: Final[tuple[Requirement, ...]] = (
    # --- Records ---
    _row("Produce", TRANSACTIONAL_ID, _O.WRITE, "the transactional id", note="if there is one"),
    _row("Produce", TOPIC, _O.WRITE, "each topic", _E.ELEMENT),
    _row(
        "Fetch",
        CLUSTER,
        _O.CLUSTER_ACTION,
        note="for followers",
        error=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ),
    _row("Fetch", TOPIC, _O.READ, "each topic", _E.ELEMENT, "for consumers"),
    _row("ShareFetch", GROUP, _O.READ, "the group"),
    _row("ShareFetch", TOPIC, _O.READ, "each topic", _E.ELEMENT),
    _row("ShareAcknowledge", GROUP, _O.READ, "the group"),
    _row("ShareAcknowledge", TOPIC, _O.READ, "each topic", _E.ELEMENT),
    _row("ListOffsets", TOPIC, _O.DESCRIBE, "each topic", _E.ELEMENT),
    _row("OffsetForLeaderEpoch", CLUSTER, _O.CLUSTER_ACTION, effect=_E.OTHERWISE, note="for followers: all topics"),
    _row("OffsetForLeaderEpoch", TOPIC, _O.DESCRIBE, "each topic", _E.ELEMENT),
    _row("DeleteRecords", TOPIC, _O.DELETE, "each topic", _E.ELEMENT),
    # --- Metadata and topics ---
    _row("Metadata", TOPIC, _O.DESCRIBE, "each topic", _E.ELEMENT, "left out if the client requests all topics"),
    _row("Metadata", CLUSTER, _O.CREATE, effect=_E.OTHERWISE, note="to create missing topics, or:"),
    _row("Metadata", TOPIC, _O.CREATE, "each missing topic", _E.ELEMENT, "to create missing topics"),
    _row("Metadata", CLUSTER, _O.DESCRIBE, effect=_E.LEFT_OUT, note="for the authorized operations of the cluster"),
    _row("DescribeTopicPartitions", TOPIC, _O.DESCRIBE, "each topic", _E.ELEMENT, "left out if all are requested"),
    _row("DescribeCluster", CLUSTER, _O.DESCRIBE, effect=_E.LEFT_OUT, note="for the authorized operations only"),
    _row("CreateTopics", CLUSTER, _O.CREATE, effect=_E.OTHERWISE, note="for every topic, or:"),
    _row("CreateTopics", TOPIC, _O.CREATE, "each topic", _E.ELEMENT),
    _row("CreateTopics", TOPIC, _O.DESCRIBE_CONFIGS, "each topic", _E.LEFT_OUT, "to see its configuration"),
    _row("DeleteTopics", CLUSTER, _O.DELETE, effect=_E.OTHERWISE, note="for every topic, or:"),
    _row("DeleteTopics", TOPIC, _O.DESCRIBE, "each topic", _E.ELEMENT, "a topic id is not resolved without it"),
    _row("DeleteTopics", TOPIC, _O.DELETE, "each topic", _E.ELEMENT),
    _row("CreatePartitions", TOPIC, _O.ALTER, "each topic", _E.ELEMENT),
    # --- Configuration ---
    _row("DescribeConfigs", TOPIC, _O.DESCRIBE_CONFIGS, "each topic", _E.ELEMENT),
    _row("DescribeConfigs", GROUP, _O.DESCRIBE_CONFIGS, "each group", _E.ELEMENT),
    _row("DescribeConfigs", CLUSTER, _O.DESCRIBE_CONFIGS, effect=_E.ELEMENT, note="for brokers and loggers"),
    _row("AlterConfigs", TOPIC, _O.ALTER_CONFIGS, "each topic", _E.ELEMENT),
    _row("AlterConfigs", GROUP, _O.ALTER_CONFIGS, "each group", _E.ELEMENT),
    _row("AlterConfigs", CLUSTER, _O.ALTER_CONFIGS, effect=_E.ELEMENT, note="for brokers and loggers"),
    _row("IncrementalAlterConfigs", TOPIC, _O.ALTER_CONFIGS, "each topic", _E.ELEMENT),
    _row("IncrementalAlterConfigs", GROUP, _O.ALTER_CONFIGS, "each group", _E.ELEMENT),
    _row("IncrementalAlterConfigs", CLUSTER, _O.ALTER_CONFIGS, effect=_E.ELEMENT, note="for brokers and loggers"),
    _row("ListConfigResources", CLUSTER, _O.DESCRIBE_CONFIGS),
    # --- Groups ---
    _row("FindCoordinator", GROUP, _O.DESCRIBE, "each group", _E.ELEMENT),
    _row("FindCoordinator", TRANSACTIONAL_ID, _O.DESCRIBE, "each transactional id", _E.ELEMENT),
    _row("FindCoordinator", CLUSTER, _O.CLUSTER_ACTION, note="for coordinators of share groups"),
    _row("JoinGroup", GROUP, _O.READ, "the group"),
    _row("SyncGroup", GROUP, _O.READ, "the group"),
    _row("Heartbeat", GROUP, _O.READ, "the group"),
    _row("LeaveGroup", GROUP, _O.READ, "the group"),
    _row("ConsumerGroupHeartbeat", GROUP, _O.READ, "the group"),
    _row(
        "ConsumerGroupHeartbeat",
        TOPIC,
        _O.DESCRIBE,
        "each topic",
        note="topics that match a regular expression are left out",
        error=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ),
    _row("ConsumerGroupDescribe", GROUP, _O.DESCRIBE, "each group", _E.ELEMENT),
    _row("ConsumerGroupDescribe", TOPIC, _O.DESCRIBE, "each topic of a member", _E.ELEMENT),
    _row("ShareGroupHeartbeat", GROUP, _O.READ, "the group"),
    _row("ShareGroupHeartbeat", TOPIC, _O.DESCRIBE, "each topic", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    _row("ShareGroupDescribe", GROUP, _O.DESCRIBE, "each group", _E.ELEMENT),
    _row("ShareGroupDescribe", TOPIC, _O.DESCRIBE, "each topic of a member", _E.ELEMENT),
    _row("DescribeShareGroupOffsets", GROUP, _O.DESCRIBE, "each group", _E.ELEMENT),
    _row("DescribeShareGroupOffsets", TOPIC, _O.DESCRIBE, "each topic", _E.ELEMENT, "left out if all are requested"),
    _row("AlterShareGroupOffsets", GROUP, _O.READ, "the group"),
    _row("AlterShareGroupOffsets", TOPIC, _O.READ, "each topic", _E.ELEMENT),
    _row("DeleteShareGroupOffsets", GROUP, _O.DELETE, "the group"),
    _row("DeleteShareGroupOffsets", TOPIC, _O.READ, "each topic", _E.ELEMENT),
    _row("StreamsGroupHeartbeat", GROUP, _O.READ, "the group"),
    _row("StreamsGroupHeartbeat", TOPIC, _O.DESCRIBE, "each topic", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    _row("StreamsGroupHeartbeat", CLUSTER, _O.CREATE, effect=_E.LEFT_OUT, note="to create internal topics, or:"),
    _row("StreamsGroupHeartbeat", TOPIC, _O.CREATE, "each internal topic", _E.LEFT_OUT, "to create missing ones"),
    _row("StreamsGroupDescribe", GROUP, _O.DESCRIBE, "each group", _E.ELEMENT),
    _row("StreamsGroupDescribe", TOPIC, _O.DESCRIBE, "each topic of the topology", _E.ELEMENT),
    _row("DescribeGroups", GROUP, _O.DESCRIBE, "each group", _E.ELEMENT),
    _row("ListGroups", CLUSTER, _O.DESCRIBE, effect=_E.OTHERWISE, note="for every group, or:"),
    _row("ListGroups", GROUP, _O.DESCRIBE, "each group", _E.LEFT_OUT),
    _row("DeleteGroups", GROUP, _O.DELETE, "each group", _E.ELEMENT),
    _row("OffsetCommit", GROUP, _O.READ, "the group"),
    _row("OffsetCommit", TOPIC, _O.READ, "each topic", _E.ELEMENT),
    _row("OffsetFetch", GROUP, _O.DESCRIBE, "each group", _E.ELEMENT),
    _row("OffsetFetch", TOPIC, _O.DESCRIBE, "each topic", _E.ELEMENT, "left out if all are requested"),
    _row("OffsetDelete", GROUP, _O.DELETE, "the group"),
    _row("OffsetDelete", TOPIC, _O.READ, "each topic", _E.ELEMENT),
    # --- Producers and transactions ---
    _row("InitProducerId", TRANSACTIONAL_ID, _O.WRITE, "the transactional id", note="if there is one"),
    _row("InitProducerId", TRANSACTIONAL_ID, _O.TWO_PHASE_COMMIT, "the transactional id", note="with two-phase commit"),
    _row("InitProducerId", CLUSTER, _O.IDEMPOTENT_WRITE, effect=_E.OTHERWISE, note="without a transactional id, or:"),
    _row(
        "InitProducerId",
        TOPIC,
        _O.WRITE,
        "any topic",
        note="without a transactional id (KIP-679)",
        error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ),
    _row("AddPartitionsToTxn", TRANSACTIONAL_ID, _O.WRITE, "the transactional id", note="for clients, up to version 3"),
    _row("AddPartitionsToTxn", TOPIC, _O.WRITE, "each topic", _E.ELEMENT, "for clients, up to version 3"),
    _row("AddPartitionsToTxn", CLUSTER, _O.CLUSTER_ACTION, note="for brokers, from version 4 on"),
    _row("AddOffsetsToTxn", TRANSACTIONAL_ID, _O.WRITE, "the transactional id"),
    _row("AddOffsetsToTxn", GROUP, _O.READ, "the group"),
    _row("EndTxn", TRANSACTIONAL_ID, _O.WRITE, "the transactional id"),
    _row("TxnOffsetCommit", TRANSACTIONAL_ID, _O.WRITE, "the transactional id"),
    _row("TxnOffsetCommit", GROUP, _O.READ, "the group"),
    _row("TxnOffsetCommit", TOPIC, _O.READ, "each topic", _E.ELEMENT),
    _row("WriteTxnMarkers", CLUSTER, _O.ALTER, effect=_E.OTHERWISE, note="to abort a hanging transaction, or:"),
    _row("WriteTxnMarkers", CLUSTER, _O.CLUSTER_ACTION, note="for brokers"),
    _row("DescribeProducers", TOPIC, _O.READ, "each topic", _E.ELEMENT),
    _row("DescribeTransactions", TRANSACTIONAL_ID, _O.DESCRIBE, "each transactional id", _E.ELEMENT),
    _row("DescribeTransactions", TOPIC, _O.DESCRIBE, "each topic of a transaction", _E.LEFT_OUT),
    _row("ListTransactions", TRANSACTIONAL_ID, _O.DESCRIBE, "each transactional id", _E.LEFT_OUT),
    # --- Administration of the cluster ---
    _row("AlterReplicaLogDirs", CLUSTER, _O.ALTER),
    _row("DescribeLogDirs", CLUSTER, _O.DESCRIBE),
    _row("ElectLeaders", CLUSTER, _O.ALTER),
    _row("AlterPartitionReassignments", CLUSTER, _O.ALTER),
    _row("ListPartitionReassignments", CLUSTER, _O.DESCRIBE),
    _row("UnregisterBroker", CLUSTER, _O.ALTER),
    _row("UpdateFeatures", CLUSTER, _O.ALTER),
    _row("MigrateCoordination", CLUSTER, _O.ALTER, note="Parley's own API"),
    _row("VerifyLogs", CLUSTER, _O.DESCRIBE, note="Parley's own API"),
    _row("DescribeBackgroundWork", CLUSTER, _O.DESCRIBE, note="Parley's own API"),
    # --- Security ---
    _row("DescribeAcls", CLUSTER, _O.DESCRIBE),
    _row("CreateAcls", CLUSTER, _O.ALTER),
    _row("DeleteAcls", CLUSTER, _O.ALTER),
    _row("DescribeUserScramCredentials", CLUSTER, _O.DESCRIBE),
    _row("AlterUserScramCredentials", CLUSTER, _O.ALTER),
    _row("DescribeClientQuotas", CLUSTER, _O.DESCRIBE_CONFIGS),
    _row("AlterClientQuotas", CLUSTER, _O.ALTER_CONFIGS),
    _row("CreateDelegationToken", USER, _O.CREATE_TOKENS, "the owner", note="for another owner (KIP-373)"),
    _row("RenewDelegationToken", TOKEN, _O.DESCRIBE, "no resource", _E.OTHERWISE, "the owner and the renewers may"),
    _row("ExpireDelegationToken", TOKEN, _O.DESCRIBE, "no resource", _E.OTHERWISE, "the owner and the renewers may"),
    _row("DescribeDelegationToken", TOKEN, _O.DESCRIBE, "each token", _E.LEFT_OUT, "for other owners' tokens"),
    _row("DescribeDelegationToken", USER, _O.DESCRIBE_TOKENS, "each owner", _E.OTHERWISE, "for other owners' tokens"),
    # --- Between brokers ---
    _row("ControlledShutdown", CLUSTER, _O.CLUSTER_ACTION),
    _row("AlterPartition", CLUSTER, _O.CLUSTER_ACTION),
    _row("AssignReplicasToDirs", CLUSTER, _O.CLUSTER_ACTION),
    _row("GetReplicaLogInfo", CLUSTER, _O.CLUSTER_ACTION),
    _row("InitializeShareGroupState", CLUSTER, _O.CLUSTER_ACTION),
    _row("ReadShareGroupState", CLUSTER, _O.CLUSTER_ACTION),
    _row("WriteShareGroupState", CLUSTER, _O.CLUSTER_ACTION),
    _row("DeleteShareGroupState", CLUSTER, _O.CLUSTER_ACTION),
    _row("ReadShareGroupStateSummary", CLUSTER, _O.CLUSTER_ACTION),
    _row("FetchMetadata", CLUSTER, _O.CLUSTER_ACTION, note="Parley's own API"),
    _row("ReportOfflineReplicas", CLUSTER, _O.CLUSTER_ACTION, note="Parley's own API"),
    _row("Envelope", CLUSTER, _O.CLUSTER_ACTION, note="the request in it is checked with the client's rights"),
    _row("StoreDelegationToken", CLUSTER, _O.CLUSTER_ACTION, note="Parley's own API"),
    _row("HandOverLeadership", CLUSTER, _O.CLUSTER_ACTION, note="Parley's own API"),
)

DECLARED: Final = frozenset((row.api_key, row.type, row.operation) for row in REQUIREMENTS)
"""The checks that handlers may make."""

_CONDITIONAL: Final = frozenset(
    _KEYS[name] for name in ("Fetch", "DescribeCluster", "FindCoordinator", "AddPartitionsToTxn", "WriteTxnMarkers")
)
"""APIs of which only some requests need a right on the cluster. Their guards decide which ones."""

WHOLE_CLUSTER: Final[Mapping[int, Requirement]] = {
    row.api_key: row
    for row in REQUIREMENTS
    if row.type is CLUSTER and row.effect is Effect.REFUSED and row.api_key not in _CONDITIONAL
}
"""The right on the cluster that every request of an API needs, for the APIs that need such a right."""
