"""The dashboards for Grafana: a compact definition of each panel, and the JSON that Grafana imports.

A dashboard prompts for its data source (the variable ``datasource``) and loads nothing else. ``$__rate_interval`` is
Grafana's: at least four scrapes. Panels flow from left to right in rows of ``COLUMNS``.
"""

from __future__ import annotations

import json
from typing import Any, Final

from parley.light_dataclasses import dataclass

COLUMNS: Final = 3
_GRID_WIDTH, _HEIGHT = 24, 8
_SCHEMA: Final = 39
"""The version of Grafana's dashboard schema (Grafana 11). Later versions convert it."""

RATE: Final = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Query:
    """A query and the legend of its lines."""

    expr: str
    legend: str = "{{instance}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph of some queries. ``unit`` is Grafana's unit; ``why`` explains what to look for."""

    title: str
    unit: str
    why: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Panels about one subject. ``variables`` contains the labels by which the user can filter: pairs of a label's name
    and a metric that has the label."""

    uid: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[tuple[str, str], ...] = ()


def _p(title: str, unit: str, why: str, *queries: Query | str, kind: str = "timeseries") -> Panel:
    return Panel(title, unit, why, tuple(Query(q) if isinstance(q, str) else q for q in queries), kind)


def _rate(metric: str, by: str = "", where: str = "") -> str:
    """Return the query for the sum of a counter's rates. ``by`` contains the labels to group by, and ``where`` is a
    filter in braces."""
    grouped = f"sum by ({by}) " if by else "sum"
    return f"{grouped}(rate({metric}{where}[{RATE}]))"


def _quantile(metric: str, by: str, where: str = "", quantile: float = 0.99) -> str:
    return f"histogram_quantile({quantile}, sum by ({by}, le) (rate({metric}_bucket{where}[{RATE}])))"


_ONE = '{instance=~"$instance"}'
_TOPIC = '{topic=~"$topic"}'
_GROUP = '{group=~"$group"}'
_CONNECT = '{group=~"connect-.*"}'
_CALLS = '{operation=~"get|put|delete|list|txn"}'

CLUSTER: Final = Dashboard(
    "parley-cluster",
    "Parley: cluster",
    (
        _p(
            "Brokers that respond", "short", "Should be all of them.", Query('sum(up{job="parley"})', "up"), kind="stat"
        ),
        _p("Controllers", "short", "Exactly one.", Query("sum(parley_active_controller)", "controllers"), kind="stat"),
        _p(
            "Offline partitions",
            "short",
            "Should be 0. Clients can neither read nor write offline partitions.",
            Query("max(parley_offline_partitions)", "partitions"),
            kind="stat",
        ),
        _p(
            "Partitions that lack replicas",
            "short",
            "Under min.insync.replicas, acks=all fails.",
            Query("sum(parley_under_replicated_partitions)", "under-replicated"),
            Query("sum(parley_at_min_isr_partitions)", "at min ISR"),
            Query("sum(parley_under_min_isr_partitions)", "under min ISR"),
        ),
        _p(
            "ISR changes",
            "ops",
            "Changes only at restarts. Otherwise a follower is sometimes too slow.",
            Query(_rate("parley_isr_shrinks_total"), "shrinks"),
            Query(_rate("parley_isr_expands_total"), "expands"),
        ),
        _p(
            "Leader elections",
            "ops",
            "Each interrupts clients briefly.",
            Query(_rate("parley_leader_elections_total"), "elected"),
            Query(_rate("parley_unclean_leader_elections_total"), "unclean"),
        ),
        _p(
            "Bytes",
            "Bps",
            "Traffic of the whole cluster.",
            Query(_rate("parley_topic_in_bytes_total"), "in"),
            Query(_rate("parley_topic_out_bytes_total"), "out"),
            Query(_rate("parley_topic_replication_in_bytes_total"), "replication"),
        ),
        _p("Records in", "ops", "Records accepted.", Query(_rate("parley_topic_in_records_total"), "records")),
        _p("Leaders", "short", "About equal. If not, run parley balance.", "parley_leader_replicas"),
        _p(
            "Produce, 99%",
            "s",
            "The slowest of 100 produce requests.",
            _quantile("parley_request_duration_seconds", "instance", '{api="Produce"}'),
        ),
        _p(
            "Free space",
            "percentunit",
            "Below 15%, the disk will soon be full.",
            Query("parley_log_directory_free_bytes / parley_log_directory_total_bytes", "{{instance}} {{directory}}"),
        ),
        _p(
            "Coordination store responds",
            "short",
            "Should be 1. At 0, nothing can be changed in the cluster.",
            "parley_store_responds",
        ),
    ),
)

BROKER: Final = Dashboard(
    "parley-broker",
    "Parley: broker",
    (
        _p(
            "Wait for the event loop",
            "s",
            "Above 0.1 s the broker has more work than one core can do.",
            f"parley_event_loop_delay_seconds{_ONE}",
        ),
        _p(
            "CPU",
            "percentunit",
            "1 is one whole core. A broker uses no more.",
            f"rate(process_cpu_seconds_total{_ONE}[{RATE}])",
        ),
        _p(
            "Memory",
            "bytes",
            "The memory of the broker itself, without the page cache.",
            f"process_resident_memory_bytes{_ONE}",
        ),
        _p("Requests", "ops", "By API.", Query(_rate("parley_requests_total", "api", _ONE), "{{api}}")),
        _p(
            "Requests that fail as a whole",
            "ops",
            "By API.",
            Query(_rate("parley_request_failures_total", "api", _ONE), "{{api}}"),
        ),
        _p(
            "Time of requests, 99%",
            "s",
            "A fetch waits for records, so a long time is normal.",
            Query(_quantile("parley_request_duration_seconds", "api", _ONE), "{{api}}"),
        ),
        _p(
            "Stages of produce requests",
            "s",
            "Mean times. Remote is the wait for replicas, queue the wait for the broker.",
            *(
                Query(
                    f'sum(rate(parley_{stage}_seconds_total{{instance=~"$instance", api="Produce"}}[{RATE}])) '
                    f'/ sum(rate(parley_requests_total{{instance=~"$instance", api="Produce"}}[{RATE}]))',
                    stage.replace("_", " "),
                )
                for stage in ("request_queue", "request_local", "request_remote", "response_queue", "response_send")
            ),
        ),
        _p(
            "Connections",
            "short",
            "By listener, and the limit.",
            Query(f"parley_connections{_ONE}", "{{instance}} {{listener}}"),
            Query(f"parley_connections_limit{_ONE}", "{{instance}} limit"),
        ),
        _p(
            "Logins",
            "ops",
            "Bursts of failures mean an old password, or guessing.",
            Query(_rate("parley_authentications_total", "listener", _ONE), "{{listener}} succeeded"),
            Query(_rate("parley_failed_authentications_total", "listener", _ONE), "{{listener}} failed"),
        ),
        _p(
            "Throttled clients",
            "s",
            "Throttle time per second, by quota.",
            Query(
                _rate("parley_client_quota_throttle_seconds_total", "quota, user, client_id", _ONE),
                "{{quota}} {{user}} {{client_id}}",
            ),
        ),
        _p(
            "Requests that wait",
            "short",
            "For replicas, records or members.",
            Query(f"sum by (operation) (parley_purgatory_size{_ONE})", "{{operation}}"),
            Query(f"sum(parley_requests_in_progress{_ONE})", "in progress"),
        ),
        _p(
            "Lag of followers",
            "short",
            "Records that the slowest follower lacks.",
            Query(f"parley_replica_fetcher_max_lag_records{_ONE}", "{{instance}} from {{leader}}"),
        ),
        _p(
            "Flushes, 99%",
            "s",
            "A slow disk is visible here first.",
            _quantile("parley_log_flush_seconds", "instance", _ONE),
        ),
        _p(
            "Space of log directories",
            "bytes",
            "Free and total.",
            Query(f"parley_log_directory_free_bytes{_ONE}", "{{instance}} {{directory}} free"),
            Query(f"parley_log_directory_total_bytes{_ONE}", "{{instance}} {{directory}} total"),
        ),
        _p(
            "Damage and cleaner",
            "short",
            "All should be 0.",
            Query(f"parley_damaged_ranges{_ONE}", "{{instance}} damaged ranges"),
            Query(f"parley_uncleanable_partitions{_ONE}", "{{instance}} uncleanable"),
            Query(f"parley_log_directory_offline{_ONE}", "{{instance}} offline directory"),
        ),
    ),
    (("instance", "parley_start_time_seconds"),),
)

TOPICS: Final = Dashboard(
    "parley-topics",
    "Parley: topics",
    (
        _p("Bytes in", "Bps", "By topic.", Query(_rate("parley_topic_in_bytes_total", "topic", _TOPIC), "{{topic}}")),
        _p(
            "Bytes out",
            "Bps",
            "To consumers.",
            Query(_rate("parley_topic_out_bytes_total", "topic", _TOPIC), "{{topic}}"),
        ),
        _p(
            "Records in",
            "ops",
            "By topic.",
            Query(_rate("parley_topic_in_records_total", "topic", _TOPIC), "{{topic}}"),
        ),
        _p(
            "Failed requests",
            "ops",
            "Produce and fetch.",
            Query(_rate("parley_topic_failed_produce_requests_total", "topic", _TOPIC), "{{topic}} produce"),
            Query(_rate("parley_topic_failed_fetch_requests_total", "topic", _TOPIC), "{{topic}} fetch"),
        ),
        _p(
            "Rejected batches",
            "ops",
            "Invalid batches, and bytes of batches that are too large.",
            Query(_rate("parley_topic_invalid_batches_total", "topic", _TOPIC), "{{topic}} invalid"),
            Query(_rate("parley_topic_rejected_bytes_total", "topic", _TOPIC), "{{topic}} too large"),
        ),
        _p(
            "Size",
            "bytes",
            "One replica of each partition.",
            Query(f"sum by (topic) (max by (topic, partition) (parley_log_size_bytes{_TOPIC}))", "{{topic}}"),
        ),
        _p(
            "Records kept",
            "short",
            "From the log start offset to the end.",
            Query(
                f"sum by (topic) (max by (topic, partition) (parley_log_end_offset{_TOPIC}) "
                f"- max by (topic, partition) (parley_log_start_offset{_TOPIC}))",
                "{{topic}}",
            ),
        ),
        _p(
            "Lag of replicas",
            "short",
            "Records that the slowest replica of any partition lacks.",
            Query(
                f"max by (topic) (max by (topic, partition) (parley_log_end_offset{_TOPIC}) "
                f"- min by (topic, partition) (parley_log_end_offset{_TOPIC}))",
                "{{topic}}",
            ),
        ),
        _p(
            "Old formats",
            "ops",
            "Conversions for old clients cost CPU.",
            Query(_rate("parley_topic_produce_conversions_total", "topic", _TOPIC), "{{topic}} produce"),
            Query(_rate("parley_topic_fetch_conversions_total", "topic", _TOPIC), "{{topic}} fetch"),
        ),
    ),
    (("topic", "parley_topic_in_records_total"),),
)

GROUPS_AND_TRANSACTIONS: Final = Dashboard(
    "parley-groups",
    "Parley: groups and transactions",
    (
        _p(
            "Lag",
            "short",
            "Records between the committed offset and the end, by group and topic.",
            Query(f"sum by (group, topic) (parley_group_lag_records{_GROUP})", "{{group}} {{topic}}"),
        ),
        _p(
            "Records processed",
            "ops",
            "Records that groups have committed.",
            Query(
                f"sum by (group, topic) (clamp_min(deriv(parley_group_committed_offset{_GROUP}[{RATE}]), 0))",
                "{{group}} {{topic}}",
            ),
        ),
        _p(
            "Members",
            "short",
            "By group.",
            Query(f"max by (group, type) (parley_group_members{_GROUP})", "{{group}} {{type}}"),
        ),
        _p(
            "Rebalances",
            "ops",
            "Each pauses consumers briefly.",
            Query(_rate("parley_group_rebalances_total"), "classic"),
            Query(_rate("parley_consumer_group_rebalances_total"), "consumer"),
            Query(_rate("parley_streams_group_rebalances_total"), "streams"),
        ),
        _p(
            "Groups by state",
            "short",
            "Groups of each type.",
            Query("sum by (state) (parley_groups)", "classic {{state}}"),
            Query("sum by (state) (parley_consumer_groups)", "consumer {{state}}"),
            Query("sum by (state) (parley_streams_groups)", "streams {{state}}"),
            Query("sum by (state) (parley_share_groups)", "share {{state}}"),
        ),
        _p("Commits", "ops", "Offset commits.", Query(_rate("parley_group_offset_commits_total"), "commits")),
        _p(
            "Lag of share groups",
            "short",
            "Records that are not acknowledged.",
            Query(f"sum by (group, topic) (parley_share_group_lag_records{_GROUP})", "{{group}} {{topic}}"),
        ),
        _p(
            "Acknowledgements of share groups",
            "ops",
            "Check the consumers if records are rejected or time out.",
            Query(_rate("parley_share_accepted_records_total"), "accepted"),
            Query(_rate("parley_share_released_records_total"), "released"),
            Query(_rate("parley_share_rejected_records_total"), "rejected"),
            Query(_rate("parley_share_lock_timeouts_total"), "timed out"),
        ),
        _p(
            "Records in flight",
            "short",
            "Acquired, but not acknowledged.",
            Query("sum(parley_share_in_flight_records)", "records"),
        ),
        _p("Transactional ids", "short", "By state.", Query("sum by (state) (parley_transactional_ids)", "{{state}}")),
        _p(
            "Open transactions",
            "short",
            "Late transactions block consumers with read_committed.",
            Query("sum(parley_open_transactions)", "open"),
            Query("sum(parley_late_transaction_partitions)", "late"),
            Query("sum(parley_transactions_completing)", "completing"),
        ),
        _p(
            "Coordinators",
            "s",
            "Time until a change of a coordinator is replicated, 99%.",
            Query(_quantile("parley_coordinator_commit_seconds", "topic"), "{{topic}}"),
        ),
    ),
    (("group", "parley_group_members"),),
)

STORES: Final = Dashboard(
    "parley-stores",
    "Parley: coordination store",
    (
        _p(
            "Responds",
            "short",
            "Should be 1 on every broker.",
            Query("parley_store_responds", "{{instance}} {{store}}"),
        ),
        _p(
            "Store in charge",
            "s",
            "The store, and how long each broker has used it.",
            Query("parley_store_in_charge_seconds", "{{instance}} {{store}}"),
            kind="stat",
        ),
        _p(
            "Since the last contact",
            "s",
            "Grows during an outage. Otherwise at most the time between two renewals.",
            "parley_store_since_contact_seconds",
        ),
        _p(
            "Time of calls, 99%",
            "s",
            "By operation.",
            Query(_quantile("parley_store_call_duration_seconds", "operation", _CALLS), "{{operation}}"),
        ),
        _p(
            "Time of calls, median",
            "s",
            "By operation.",
            Query(_quantile("parley_store_call_duration_seconds", "operation", _CALLS, 0.5), "{{operation}}"),
        ),
        _p(
            "Calls",
            "ops",
            "By operation.",
            Query(_rate("parley_store_call_duration_seconds_count", "operation"), "{{operation}}"),
        ),
        _p(
            "Errors",
            "ops",
            "Unavailable, MaybeApplied and Cancelled are faults. The others are regular responses.",
            Query(_rate("parley_store_errors_total", "kind"), "{{kind}}"),
        ),
        _p(
            "Outages and interruptions",
            "short",
            "Since each broker started.",
            Query("parley_store_outages_total", "{{instance}} outages"),
            Query("parley_store_session_interruptions_total", "{{instance}} interruptions"),
            Query("parley_store_session_expirations_total", "{{instance}} sessions lost"),
        ),
        _p("Age of the session", "s", "Falls to 0 when a session is lost.", "parley_store_session_age_seconds"),
        _p(
            "Restarted watches",
            "ops",
            "After a reconnection.",
            _rate("parley_store_watch_restarts_total", "instance"),
        ),
        _p(
            "Decisions of the controller, 99%",
            "s",
            "Time until the store contains them.",
            Query(_quantile("parley_controller_decision_duration_seconds", "instance"), "{{instance}}"),
        ),
        _p("Calls in progress", "short", "Grows if the store hangs.", "parley_store_calls_in_progress"),
    ),
)

CONNECT: Final = Dashboard(
    "parley-connect",
    "Parley: connect",
    (
        _p(
            "Lag of sink connectors",
            "short",
            "A sink connector NAME consumes as the group connect-NAME.",
            Query(f"sum by (group, topic) (parley_group_lag_records{_CONNECT})", "{{group}} {{topic}}"),
        ),
        _p(
            "Records of sink connectors",
            "ops",
            "Records that their tasks have committed.",
            Query(
                f"sum by (group, topic) (clamp_min(deriv(parley_group_committed_offset{_CONNECT}[{RATE}]), 0))",
                "{{group}} {{topic}}",
            ),
        ),
        _p(
            "Tasks of sink connectors",
            "short",
            "Members of their groups: 0 if all tasks have failed.",
            Query(f"max by (group) (parley_group_members{_CONNECT})", "{{group}}"),
        ),
        _p(
            "Rebalances of sink connectors",
            "short",
            "The generation of their groups.",
            Query(f"max by (group) (parley_group_epoch{_CONNECT})", "{{group}}"),
        ),
        _p(
            "Connect's own topics",
            "ops",
            "Configurations, offsets and states of workers with the default topic names.",
            Query(_rate("parley_topic_in_records_total", "topic", '{topic=~"connect-.*"}'), "{{topic}}"),
        ),
        _p(
            "Size of Connect's own topics",
            "bytes",
            "They are compacted, so they stay small.",
            Query(
                'sum by (topic) (max by (topic, partition) (parley_log_size_bytes{topic=~"connect-.*"}))', "{{topic}}"
            ),
        ),
    ),
)

DASHBOARDS: Final = (CLUSTER, BROKER, TOPICS, GROUPS_AND_TRANSACTIONS, STORES, CONNECT)


def dashboard_file(dashboard: Dashboard) -> str:
    """Return a dashboard as the JSON that Grafana imports."""
    made: dict[str, Any] = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["parley"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), *(_variable(*each) for each in dashboard.variables)]},
        "panels": [_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }
    return json.dumps(made, indent=1) + "\n"


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {label})"
    return {
        "name": label,
        "label": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": "A"},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    width = _GRID_WIDTH // COLUMNS
    source = {"type": "prometheus", "uid": "${datasource}"}
    row, column = divmod(number, COLUMNS)
    targets = [
        {"refId": chr(ord("A") + index), "datasource": source, "expr": query.expr, "legendFormat": query.legend}
        for index, query in enumerate(panel.queries)
    ]
    return {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.why,
        "datasource": source,
        "gridPos": {"x": column * width, "y": row * _HEIGHT, "w": width, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {},
        "targets": targets,
    }
