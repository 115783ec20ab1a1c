"""All messages between clients and brokers, one module per family of APIs, and the table of the APIs.

The classes use the notation of ``parley.protocol.schema`` and have the names of Kafka's definitions, with fields in
snake_case. Their versions are those of Apache Kafka 4.3, and older ones that Kafka 4 has removed but that clients since
0.8 still send. APIs that only Kafka's controllers use are left out. Parley's brokers have a few additional APIs, such
as FetchMetadata.

A module is imported when its first class is needed, so a program imports only the APIs that it uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parley.protocol.schema import Request, Response

__all__ = ["APIS", "Api", "api_by_name"]


@dataclass(frozen=True)
class Api:
    """One API: its key, its name without "Request", and the module that defines its two messages."""

    key: int
    name: str
    family: str

    @cached_property
    def request(self) -> type[Request]:
        """The class of the request. The first access imports its module."""
        request: type[Request] = self._class("Request")
        return request

    @cached_property
    def response(self) -> type[Response]:
        """The class of the response. The first access imports its module."""
        response: type[Response] = self._class("Response")
        return response

    def _class(self, suffix: str) -> Any:
        return getattr(import_module(f"{__name__}.{self.family}"), self.name + suffix)


_FAMILIES: dict[str, dict[int, str]] = {
    "produce": {0: "Produce"},
    "fetch": {1: "Fetch"},
    "offsets": {2: "ListOffsets", 23: "OffsetForLeaderEpoch"},
    "metadata": {3: "Metadata", 60: "DescribeCluster", 75: "DescribeTopicPartitions"},
    "group_offsets": {8: "OffsetCommit", 9: "OffsetFetch", 47: "OffsetDelete"},
    "groups": {
        10: "FindCoordinator",
        11: "JoinGroup",
        12: "Heartbeat",
        13: "LeaveGroup",
        14: "SyncGroup",
        15: "DescribeGroups",
        16: "ListGroups",
        42: "DeleteGroups",
    },
    "brokers": {7: "ControlledShutdown"},
    "sasl": {17: "SaslHandshake", 36: "SaslAuthenticate"},
    "api_versions": {18: "ApiVersions"},
    "topics": {19: "CreateTopics", 20: "DeleteTopics", 21: "DeleteRecords", 37: "CreatePartitions"},
    "producers": {22: "InitProducerId", 61: "DescribeProducers"},
    "transactions": {
        24: "AddPartitionsToTxn",
        25: "AddOffsetsToTxn",
        26: "EndTxn",
        27: "WriteTxnMarkers",
        28: "TxnOffsetCommit",
        65: "DescribeTransactions",
        66: "ListTransactions",
    },
    "acls": {29: "DescribeAcls", 30: "CreateAcls", 31: "DeleteAcls"},
    "configs": {
        32: "DescribeConfigs",
        33: "AlterConfigs",
        44: "IncrementalAlterConfigs",
        74: "ListConfigResources",
    },
    "log_dirs": {34: "AlterReplicaLogDirs", 35: "DescribeLogDirs"},
    "delegation_tokens": {
        38: "CreateDelegationToken",
        39: "RenewDelegationToken",
        40: "ExpireDelegationToken",
        41: "DescribeDelegationToken",
    },
    "elections": {43: "ElectLeaders", 45: "AlterPartitionReassignments", 46: "ListPartitionReassignments"},
    "quotas": {48: "DescribeClientQuotas", 49: "AlterClientQuotas"},
    "scram": {50: "DescribeUserScramCredentials", 51: "AlterUserScramCredentials"},
    "quorum": {55: "DescribeQuorum", 64: "UnregisterBroker", 80: "AddRaftVoter", 81: "RemoveRaftVoter"},
    "replication": {56: "AlterPartition", 73: "AssignReplicasToDirs", 93: "GetReplicaLogInfo"},
    "features": {57: "UpdateFeatures"},
    "envelope": {58: "Envelope"},
    "consumer_groups": {68: "ConsumerGroupHeartbeat", 69: "ConsumerGroupDescribe"},
    "telemetry": {71: "GetTelemetrySubscriptions", 72: "PushTelemetry"},
    "share_groups": {
        76: "ShareGroupHeartbeat",
        77: "ShareGroupDescribe",
        78: "ShareFetch",
        79: "ShareAcknowledge",
        90: "DescribeShareGroupOffsets",
        91: "AlterShareGroupOffsets",
        92: "DeleteShareGroupOffsets",
    },
    "share_state": {
        83: "InitializeShareGroupState",
        84: "ReadShareGroupState",
        85: "WriteShareGroupState",
        86: "DeleteShareGroupState",
        87: "ReadShareGroupStateSummary",
    },
    "streams_groups": {88: "StreamsGroupHeartbeat", 89: "StreamsGroupDescribe"},
    "cluster_metadata": {
        1000: "FetchMetadata",
        1002: "ReportOfflineReplicas",
        1003: "HandOverLeadership",
        1005: "StoreDelegationToken",
    },
    "log_verification": {1004: "VerifyLogs"},
    "background_work": {1006: "DescribeBackgroundWork"},
    "coordination": {1001: "MigrateCoordination"},
}

APIS: Mapping[int, Api] = MappingProxyType(
    {
        key: Api(key, name, family)
        for key, name, family in sorted(
            (key, name, family) for family, apis in _FAMILIES.items() for key, name in apis.items()
        )
    }
)
_BY_NAME = {api.name: api for api in APIS.values()}


def api_by_name(name: str) -> Api:
    """Return the API with this name, such as "Produce". Raises KeyError if there is none."""
    return _BY_NAME[name]
