"""Generates ``docs/what-works.md``: the features of Parley, and the APIs that a running broker serves.

A feature that users of Kafka expect is on the page even if Parley does not have it yet.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from parley.protocol.messages import APIS

_INTRODUCTION: Final = """\
# What works

`make docs` generates this page; the table of APIs comes from a running broker. A feature that is not supported yet is
rejected, never half done: the client gets the protocol's error, and the broker does not advertise APIs that it does not
support.
"""

_QUORUM = "never: a coordination store takes the place of the metadata quorum"

UNSERVED: Final = {
    "GetTelemetrySubscriptions": "not yet: metrics of clients (KIP-714)",
    "PushTelemetry": "not yet: metrics of clients (KIP-714)",
    "DescribeQuorum": _QUORUM,
    "AddRaftVoter": _QUORUM,
    "RemoveRaftVoter": _QUORUM,
}
"""The reasons why APIs are not supported, by the APIs' names. It must contain exactly the APIs that are not supported.
"""


class Feature(NamedTuple):
    """A row in the table of features."""

    name: str
    works: bool
    note: str


FEATURES: Final = (
    Feature("Producing", True,
            "acks 0, 1 and all; gzip, snappy, lz4, zstd; message formats 0, 1 and 2; CreateTime and "
            "LogAppendTime, with bounds; `compression.type`; size limits"),
    Feature("Idempotent producers", True, "duplicates, gaps and old epochs are detected, even after a restart"),
    Feature("Transactions", True,
            "KIP-98, 360, 447, 664 and 890 (transaction version 2): records and offsets of groups become visible "
            "together or not at all; `read_committed` on leaders and followers"),
    Feature("Fetching", True,
            "long polling, fetch sessions (KIP-227), size limits (KIP-74), both isolation levels, old message "
            "formats for old clients"),
    Feature("Offsets", True, "earliest, latest, by timestamp, of the maximum timestamp, by leader epoch"),
    Feature("Consumer groups", True,
            "the classic protocol with every client-side assignor, static members (KIP-345), commits, "
            "administration; groups survive restarts"),
    Feature("Consumer groups of KIP-848", True,
            "`group.protocol=consumer`: assignors on the broker, third-party ones by entry point, regular expressions, "
            "static members, online migration from and to the classic protocol; docs/groups.md"),
    Feature("Share groups", True,
            "KIP-932 and what Kafka 4.2 and 4.3 added: the share coordinator, the assignor `simple`, offsets and "
            "their administration, acquisition locks, delivery counts, renewal; docs/groups.md"),
    Feature("Streams groups", True,
            "Kafka Streams with `group.protocol=streams` (KIP-1071) as Kafka 4.3 serves it: internal topics created "
            "by the broker, the assignor `sticky` with standby tasks, offsets with member epochs; docs/groups.md"),
    Feature("Topics", True, "creation (also on first use), deletion, more partitions, deletion of records, topic ids"),
    Feature("Configuration", True,
            "Kafka's keys and defaults; changes of topics and brokers at run time, with sources and synonyms; "
            "settings without effect are accepted with a warning"),
    Feature("Retention", True, "by time and by size"),
    Feature("Compaction", True,
            "`compact` and `compact,delete` (KIP-71), in a separate process; tombstones (KIP-534), minimum and"
            " maximum lag (KIP-58, KIP-354), dirty ratio; batches of idempotent and transactional producers"),
    Feature("Several log directories", True, "a failed directory takes only its own partitions offline"),
    Feature("Data of Apache Kafka 3.9 and older", True,
            "Parley opens Kafka's data directories as they are, with all message formats"),
    Feature("Replication, several brokers", True,
            "leaders and followers with in-sync replicas, leader elections including unclean and preferred ones, "
            "`min.insync.replicas`, reassignment, brokers that join and leave"),
    Feature("Coordination stores", True,
            "an embedded one, one in memory, the servers in docs/stores.md, and third-party stores by entry point"),
    Feature("Authorization", True,
            "ACLs by Kafka's rules (KIP-290, 373, 430, 679), with ranges of addresses; third-party authorizers by "
            "entry point; docs/authorization.md lists what each request needs"),
    Feature("SCRAM users, delegation tokens", True, "in the coordination store (KIP-554, 48, 373)"),
    Feature("Encryption, authentication", True,
            "TLS 1.2 and 1.3 with certificates renewed at run time and revocation lists; PLAIN, SCRAM, OAUTHBEARER "
            "(KIP-768), GSSAPI, third-party mechanisms by entry point, re-authentication (KIP-368); among brokers, in "
            "every command, and for the REST API of Connect and the metrics"),
    Feature("Quotas", True,
            "of bytes, request time, changes of topics and connections (KIP-13, 55, 124, 219, 257, 546, 599, 612); how "
            "they count is in docs/quotas.md"),
    Feature("Metrics and health", True, "Prometheus at `/metrics`, `/healthz` for probes"),
    Feature("Metrics of clients (KIP-714)", False, ""),
    Feature("Tiered storage", False, ""),
)  # fmt: skip


def what_works_page() -> str:
    """Return the whole page, as Markdown. Starts a broker briefly, to list its APIs."""
    served = _served()
    lines = [_INTRODUCTION, "## Features", "", "| feature | works | |", "|---|---|---|"]
    lines += [f"| {name} | {'yes' if works else 'not yet'} | {note} |" for name, works, note in FEATURES]
    lines += ["", "## APIs", "", "| key | API | versions | |", "|---|---|---|---|"]
    for key, api in sorted(APIS.items()):
        versions = served.get(key, "")
        lines.append(f"| {key} | {api.name} | {versions} | {'' if versions else UNSERVED[api.name]} |")
    return "\n".join([*lines, ""])


def _served() -> dict[int, str]:
    """Return the range of versions that a broker supports, such as ``0-11``, by API key."""
    from parley.broker.embedded.broker import Broker  # imports the whole broker, which no other page needs

    with Broker(logging_level="error") as broker:
        routes = broker.server.serving.dispatcher.routes
        return {key: f"{route.min_version}-{route.max_version}" for key, route in routes.items()}
