"""Generates ``docs/what-works.md``: the features of Parley, and the APIs that a running broker serves.

A feature that users of Kafka expect is on the page even if Parley does not have it yet.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from parley.protocol.messages import APIS

_INTRODUCTION: Final = """\
# What works

This page is made by `make docs`, its table of APIs by asking a broker. What is not there yet is refused, never
half done: a client gets the protocol's error, and an API that is not served is not advertised.
"""

_TRANSACTIONS = "not yet: transactions"
_SECURITY = "not yet: security"
_QUOTAS = "not yet: quotas"
_CONSUMER_GROUPS = "not yet: the group protocol of KIP-848; clients use the classic one"
_OTHER_GROUPS = "not yet: share and streams groups"
_QUORUM = "never: there is no metadata quorum, a coordination store takes its place"

UNSERVED: Final = {
    "SaslHandshake": _SECURITY,
    "SaslAuthenticate": _SECURITY,
    "DescribeAcls": _SECURITY,
    "CreateAcls": _SECURITY,
    "DeleteAcls": _SECURITY,
    "CreateDelegationToken": _SECURITY,
    "RenewDelegationToken": _SECURITY,
    "ExpireDelegationToken": _SECURITY,
    "DescribeDelegationToken": _SECURITY,
    "DescribeUserScramCredentials": _SECURITY,
    "AlterUserScramCredentials": _SECURITY,
    "AddPartitionsToTxn": _TRANSACTIONS,
    "AddOffsetsToTxn": _TRANSACTIONS,
    "EndTxn": _TRANSACTIONS,
    "WriteTxnMarkers": _TRANSACTIONS,
    "TxnOffsetCommit": _TRANSACTIONS,
    "DescribeTransactions": _TRANSACTIONS,
    "ListTransactions": _TRANSACTIONS,
    "DescribeClientQuotas": _QUOTAS,
    "AlterClientQuotas": _QUOTAS,
    "UpdateFeatures": "not yet: feature levels",
    "ConsumerGroupHeartbeat": _CONSUMER_GROUPS,
    "ConsumerGroupDescribe": _CONSUMER_GROUPS,
    "GetTelemetrySubscriptions": "not yet: metrics of clients (KIP-714)",
    "PushTelemetry": "not yet: metrics of clients (KIP-714)",
    "ShareGroupHeartbeat": _OTHER_GROUPS,
    "ShareGroupDescribe": _OTHER_GROUPS,
    "ShareFetch": _OTHER_GROUPS,
    "ShareAcknowledge": _OTHER_GROUPS,
    "DescribeShareGroupOffsets": _OTHER_GROUPS,
    "AlterShareGroupOffsets": _OTHER_GROUPS,
    "DeleteShareGroupOffsets": _OTHER_GROUPS,
    "StreamsGroupHeartbeat": _OTHER_GROUPS,
    "StreamsGroupDescribe": _OTHER_GROUPS,
    "DescribeQuorum": _QUORUM,
    "AddRaftVoter": _QUORUM,
    "RemoveRaftVoter": _QUORUM,
}
"""Why an API is not served, by its name. An API that is served must not be here, any other must."""


class Feature(NamedTuple):
    """A row of the table of features."""

    name: str
    works: bool
    note: str


FEATURES: Final = (
    Feature("Producing", True, "acks 0, 1 and all; gzip, snappy, lz4, zstd; message formats 0, 1 and 2; time of "
            "creation or of appending, with bounds; `compression.type`; limits of size"),
    Feature("Idempotent producers", True, "repetitions, gaps and old epochs are noticed, also after a restart"),
    Feature("Transactions", False, "a transactional id is refused; `read_committed` reads everything, since nothing "
            "is open"),
    Feature("Fetching", True, "long polls, sessions (KIP-227), limits of size (KIP-74), both isolation levels, old "
            "message formats for old clients"),
    Feature("Offsets", True, "earliest, latest, by time, of the largest time; by leader epoch"),
    Feature("Consumer groups", True, "the classic protocol with every assignor of the clients, static members "
            "(KIP-345), commits, administration; state survives restarts"),
    Feature("Consumer groups of KIP-848", False, "`group.protocol=consumer` is not served; `classic` is"),
    Feature("Share groups, streams groups", False, ""),
    Feature("Topics", True, "creating (also by first use), deleting, adding partitions, deleting records, topic ids"),
    Feature("Configuration", True, "Kafka's keys and defaults; topics' and brokers' changed at run time, with sources "
            "and synonyms"),
    Feature("Retention", True, "by time and by size"),
    Feature("Compaction", False, "a topic can be `compact` and then refuses records without key, but nothing is "
            "removed yet"),
    Feature("Several log directories", True, "one that fails takes only its own partitions offline"),
    Feature("Data of Apache Kafka 3.9 and older", True, "a data directory is opened as it is, with all formats of "
            "messages"),
    Feature("Replication, several brokers", True, "leaders and followers with in-sync replicas, leader election, also "
            "unclean and preferred, `min.insync.replicas`, reassignment, brokers that join and leave"),
    Feature("Coordination stores", True, "the embedded one, one in memory, the servers that docs/stores.md has, and "
            "those of others by entry point"),
    Feature("Encryption, authentication, authorization", False, "listeners are PLAINTEXT; bind them to addresses you "
            "trust"),
    Feature("Quotas", False, "limits of connections and of request sizes do hold"),
    Feature("Metrics and health", True, "Prometheus at `/metrics`, `/healthz` for probes"),
    Feature("Metrics of clients (KIP-714)", False, ""),
    Feature("Tiered storage", False, ""),
)  # fmt: skip


def what_works_page() -> str:
    """The whole page, in Markdown. Starts a broker for a moment."""
    served = _served()
    lines = [_INTRODUCTION, "## Features", "", "| feature | works | |", "|---|---|---|"]
    lines += [f"| {name} | {'yes' if works else 'not yet'} | {note} |" for name, works, note in FEATURES]
    lines += ["", "## APIs", "", "| key | API | versions | |", "|---|---|---|---|"]
    for key, api in sorted(APIS.items()):
        versions = served.get(key, "")
        lines.append(f"| {key} | {api.name} | {versions} | {'' if versions else UNSERVED[api.name]} |")
    return "\n".join([*lines, ""])


def _served() -> dict[int, str]:
    """The versions that a broker serves, by API key."""
    from parley.broker.embedded.broker import Broker  # the whole broker, which no other page needs

    with Broker(logging_level="error") as broker:
        routes = broker.server.serving.dispatcher.routes
        return {key: f"{route.min_version}-{route.max_version}" for key, route in routes.items()}
