"""The alerts for Prometheus. Each describes a problem and what to do about it.

``rules_file`` writes them for Prometheus; ``docs/monitoring.md`` contains them as a table. An expression keeps the
labels ``cluster`` and ``instance``, so that one Prometheus can monitor several clusters.
"""

from __future__ import annotations

import json
from typing import Final

from parley.light_dataclasses import dataclass

DOCS: Final = "docs/"
"""The location of the runbooks in the repository."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. ``expr`` is its expression in PromQL, and ``wait`` its ``for`` clause, for example ``5m``."""

    name: str
    expr: str
    wait: str
    severity: str
    summary: str
    """The problem in one sentence; may use Prometheus templates."""
    action: str
    """The recommended action."""
    runbook: str
    """A page and section below ``docs/``."""


@dataclass(frozen=True, slots=True)
class Group:
    """Alerts about one subject."""

    name: str
    alerts: tuple[Alert, ...]


_AT = "{{ $labels.instance }}"
_STORE_P99 = (
    "histogram_quantile(0.99, sum by (cluster, instance, le) "
    '(rate(parley_store_call_duration_seconds_bucket{operation=~"get|put|delete|list|txn"}[5m])))'
)
_FREE = "parley_log_directory_free_bytes / (parley_log_directory_total_bytes > 0)"

GROUPS: Final = (
    Group(
        "brokers",
        (
            Alert(
                "ParleyBrokerDown",
                'up{job="parley"} == 0',
                "1m",
                "critical",
                f"The broker at {_AT} does not respond to scrapes.",
                "Check its process and the end of its log. If the process runs, check whether its event loop is stuck "
                "(/livez). If it exited with code 74 or 75, a disk failed, or memory or file descriptors ran out.",
                "operations.md#when-something-is-wrong",
            ),
            Alert(
                "ParleyEventLoopStalls",
                "parley_event_loop_delay_seconds > 0.1",
                "5m",
                "warning",
                f"Requests at {_AT} wait {{{{ $value | humanizeDuration }}}} for the event loop.",
                "The broker has more work than one core can do. Look for an API with much local time, move leaders to other "
                "brokers (parley balance), or start more brokers.",
                "operations.md#speed",
            ),
            Alert(
                "ParleyShortage",
                "parley_short > 0",
                "30s",
                "critical",
                f"The process at {_AT} has run out of {{{{ $labels.resource }}}}.",
                "Raise the limit of open files or of memory, or close connections. If the shortage lasts, the broker exits with code 75.",
                "operations.md#when-file-descriptors-or-memory-run-out",
            ),
            Alert(
                "ParleyConnectionsNearLimit",
                "sum without (listener) (parley_connections) > 0.9 * parley_connections_limit",
                "1m",
                "warning",
                f"{_AT} has {{{{ $value }}}} connections, more than 90% of its limit.",
                "Look for clients that open connections and do not close them, then raise max.connections or the limit "
                "of open files.",
                "operations.md#limits",
            ),
            Alert(
                "ParleyConnectionsRefused",
                "sum without (listener) (rate(parley_connections_refused_total[5m])) > 0",
                "5m",
                "warning",
                f"{_AT} rejects connections from an address that has too many.",
                "The log names the address. Correct that client, or raise max.connections.per.ip.",
                "operations.md#limits",
            ),
            Alert(
                "ParleyProtocolErrors",
                "sum without (listener) (rate(parley_connections_closed_for_errors_total[5m])) > 0",
                "15m",
                "warning",
                f"A client of {_AT} violates Kafka's protocol.",
                "The log contains its address and the reason. Often it is a client that expects TLS, or a port scanner.",
                "log-lines.md#connections",
            ),
            Alert(
                "ParleyAuthenticationFailures",
                "sum without (listener) (rate(parley_failed_authentications_total[5m])) > 1",
                "2m",
                "warning",
                f"{{{{ $value | humanize }}}} logins per second fail at {_AT}.",
                "The log contains the addresses and the claimed users. A client has an old password, or an attacker guesses.",
                "security.md",
            ),
            Alert(
                "ParleyCertificateExpires",
                "(parley_certificate_expiry_timestamp_seconds > 0) - time() < 14 * 86400",
                "5m",
                "warning",
                f"The certificate of listener {{{{ $labels.listener }}}} at {_AT} expires in "
                "{{ $value | humanizeDuration }}.",
                "Replace the file with one that contains a new certificate. The broker reads it without a restart.",
                "security.md",
            ),
            Alert(
                "ParleyThrottling",
                "sum by (cluster, instance, quota, user, client_id) "
                "(rate(parley_client_quota_throttle_seconds_total[5m])) > 0.2",
                "10m",
                "info",
                "{{ $labels.quota }} of user '{{ $labels.user }}', client '{{ $labels.client_id }}' is throttled.",
                "Decide whether the quota is right: parley configs --describe shows it.",
                "quotas.md",
            ),
        ),
    ),
    Group(
        "replication",
        (
            Alert(
                "ParleyNoController",
                "sum by (cluster) (parley_active_controller) == 0",
                "1m",
                "critical",
                "The cluster has no controller.",
                "Topics cannot be changed and leaders cannot be elected. Usually the coordination store is down: repair it.",
                "log-lines.md#controller-and-membership",
            ),
            Alert(
                "ParleyTwoControllers",
                "sum by (cluster) (parley_active_controller) > 1",
                "2m",
                "critical",
                "{{ $value }} brokers claim to be the controller.",
                "All but one do not know yet that they were replaced, and the store rejects their writes. Repair the network "
                "between brokers, or restart the brokers with the lower epochs (parley metadata).",
                "log-lines.md#controller-and-membership",
            ),
            Alert(
                "ParleyOfflinePartitions",
                "max by (cluster) (parley_offline_partitions) > 0",
                "1m",
                "critical",
                "{{ $value }} partitions have no leader: clients can neither read nor write them.",
                "Start the brokers that hold their replicas. parley topics --describe --unavailable-partitions lists them.",
                "operations.md#partitions-without-a-leader",
            ),
            Alert(
                "ParleyUnderMinIsr",
                "sum by (cluster) (parley_under_min_isr_partitions) > 0",
                "1m",
                "critical",
                "{{ $value }} partitions reject acks=all: too few replicas are in sync.",
                "Start the missing brokers, or find out why their replicas do not catch up.",
                "operations.md#a-cluster",
            ),
            Alert(
                "ParleyUnderReplicated",
                "sum by (cluster) (parley_under_replicated_partitions) > 0",
                "10m",
                "warning",
                "{{ $value }} partitions lack an in-sync replica.",
                "Expected while a broker restarts. Otherwise check the broker that is missing: "
                "parley topics --describe --under-replicated-partitions.",
                "operations.md#a-cluster",
            ),
            Alert(
                "ParleyIsrFlapping",
                "sum by (cluster, instance) (increase(parley_isr_shrinks_total[15m])) > 5",
                "1m",
                "warning",
                f"Replicas keep leaving the ISR of partitions that {_AT} leads.",
                "A follower, its disk or the network is sometimes too slow: compare parley_replica_fetcher_max_lag_records "
                "of the brokers.",
                "operations.md#a-cluster",
            ),
            Alert(
                "ParleyUncleanElection",
                "increase(parley_unclean_leader_elections_total[1h]) > 0",
                "0s",
                "critical",
                "A leader was elected that may lack acknowledged records.",
                "Keep the disks of the other replicas. The controller's log names the partitions.",
                "operations.md#partitions-without-a-leader",
            ),
            Alert(
                "ParleyHangingTransactions",
                "parley_late_transaction_partitions > 0",
                "5m",
                "warning",
                f"{{{{ $value }}}} partitions at {_AT} have a transaction that should have ended long ago.",
                "Consumers with read_committed wait for it. parley transactions find-hanging lists it, and "
                "parley transactions abort ends it.",
                "transactions.md",
            ),
            Alert(
                "ParleyGroupLagGrowing",
                "(sum by (cluster, group, topic) (delta(parley_group_lag_records[10m])) > 0) "
                "and (sum by (cluster, group, topic) (parley_group_lag_records) > 1000)",
                "15m",
                "warning",
                "Group {{ $labels.group }} falls further behind in topic {{ $labels.topic }}.",
                "Its members are too slow, too few, or dead: parley groups --describe --group shows them.",
                "groups.md",
            ),
        ),
    ),
    Group(
        "coordination store",
        (
            Alert(
                "ParleyStoreAway",
                "parley_store_responds == 0",
                "30s",
                "critical",
                f"The coordination store ({{{{ $labels.store }}}}) does not respond to {_AT}.",
                "Producing and consuming continue, but no leader can be elected and nothing can be changed. Start the store "
                "or repair the network. Do not restart brokers and do not change coordination.url.",
                "operations.md#when-something-is-wrong",
            ),
            Alert(
                "ParleyStoreSlow",
                f"{_STORE_P99} > 1",
                "5m",
                "warning",
                f"One of 100 calls of {_AT} to the coordination store takes {{{{ $value | humanizeDuration }}}} or more.",
                "Check the disk and the load of the store's servers. Sessions are lost when renewals take as long as "
                "coordination.session.timeout.ms.",
                "coordination.md",
            ),
            Alert(
                "ParleyStoreSessionLost",
                "increase(parley_store_session_expirations_total[10m]) > 0",
                "0s",
                "warning",
                f"The session of {_AT} with the coordination store has expired.",
                "The broker joins again by itself. If it happens again, the process is sometimes paused (memory, a "
                "suspended machine), or the store is sometimes unreachable.",
                "log-lines.md#coordination-store",
            ),
        ),
    ),
    Group(
        "disks",
        (
            Alert(
                "ParleyDiskNearlyFull",
                f"{_FREE} < 0.15",
                "5m",
                "warning",
                f"{{{{ $labels.directory }}}} at {_AT} has {{{{ $value | humanizePercentage }}}} of its space left.",
                "Before the disk is full, lower retention, delete records or topics, or move replicas to another disk.",
                "operations.md#a-full-disk",
            ),
            Alert(
                "ParleyDiskFilling",
                "predict_linear(parley_log_directory_free_bytes[1h], 4 * 3600) < 0 "
                "and parley_log_directory_total_bytes > 0",
                "15m",
                "critical",
                f"{{{{ $labels.directory }}}} at {_AT} will be full within four hours at the rate of the last hour.",
                "Find the topic that grows (parley log-dirs --describe) and throttle its producers with a quota.",
                "operations.md#a-full-disk",
            ),
            Alert(
                "ParleyLogDirectoryOffline",
                "parley_log_directory_offline > 0",
                "0s",
                "critical",
                f"{{{{ $labels.directory }}}} at {_AT} has failed: its partitions are offline.",
                "The log contains the reason. Replace the disk or free space, and restart the broker.",
                "operations.md#a-full-disk",
            ),
            Alert(
                "ParleyDamagedRecords",
                "parley_damaged_ranges_without_copy > 0",
                "1m",
                "critical",
                f"{_AT} has damaged records, and no live replica has a copy.",
                "Start the brokers that may have a copy. If there is none, skip or delete the damaged range.",
                "damage.md",
            ),
            Alert(
                "ParleyRecordsHealed",
                "increase(parley_damage_healed_ranges_total[1d]) > 0",
                "0s",
                "warning",
                f"{_AT} has replaced damaged records from another replica.",
                "The disk has altered data: check it, and replace it if it happens again.",
                "damage.md",
            ),
            Alert(
                "ParleyScrubOverdue",
                "parley_scrub_overdue_bytes > 0",
                "1d",
                "warning",
                f"{_AT} verifies its data less often than log.scrub.interval.ms requires.",
                "Raise log.scrub.max.bytes.per.second, or the interval.",
                "damage.md",
            ),
            Alert(
                "ParleyUncleanablePartitions",
                "parley_uncleanable_partitions > 0",
                "5m",
                "warning",
                f"{{{{ $value }}}} logs in {{{{ $labels.directory }}}} at {_AT} cannot be compacted, and grow.",
                "The broker's log names them and the reason. Fix the cause and restart the broker, or move the replica.",
                "log-lines.md#compaction",
            ),
            Alert(
                "ParleyCleanerBusy",
                "parley_cleaner_since_last_look_seconds > 3600",
                "5m",
                "warning",
                f"The log cleaner at {_AT} has not checked the logs for an hour: all its threads are busy.",
                "Raise log.cleaner.threads.",
                "log-lines.md#compaction",
            ),
        ),
    ),
)

ALERTS: Final = tuple(alert for group in GROUPS for alert in group.alerts)


def rules_file() -> str:
    """Return the rules for Prometheus, as YAML."""
    lines = [
        "# Alerts for Prometheus. `make docs` writes this file from parley/broker/docs/monitoring/alerts.py; do not edit it.",
        "groups:",
    ]
    for group in GROUPS:
        lines += [f"  - name: {json.dumps('parley ' + group.name)}", "    rules:"]
        for alert in group.alerts:
            lines += [
                f"      - alert: {alert.name}",
                f"        expr: {json.dumps(alert.expr)}",
                f"        for: {alert.wait}",
                "        labels:",
                f"          severity: {alert.severity}",
                "        annotations:",
                f"          summary: {json.dumps(alert.summary)}",
                f"          description: {json.dumps(alert.action)}",
                f"          runbook_url: {json.dumps(DOCS + alert.runbook)}",
            ]
    return "\n".join([*lines, ""])
