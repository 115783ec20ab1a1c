"""Generates ``docs/monitoring.md``: what to monitor, the alerts, the dashboards, and the metrics on Kafka's own
page."""

from __future__ import annotations

import re
from typing import Final

from parley.broker.docs.monitoring.alerts import ALERTS, GROUPS, Alert
from parley.broker.docs.monitoring.dashboards import DASHBOARDS, Dashboard

_INTRODUCTION: Final = """\
# Monitoring

`make docs` generates this page from `parley/broker/docs/monitoring/`; do not edit it.

This page lists what to watch, the alerts for Prometheus, the dashboards for Grafana, and the counterparts of Kafka's metrics.

Every broker with `metrics.listener=host:port` serves metrics for Prometheus at `/metrics` ([all metrics](metrics.md)), and probes at `/healthz`,
`/readyz` and `/livez` ([health](operations.md#health-and-metrics)). You need no agent or exporter. Brokers also export the lag of groups.
The folder `deploy/monitoring` contains the rest:

| file | what it is |
|---|---|
| [prometheus.yml](../deploy/monitoring/prometheus.yml) | a configuration for Prometheus, with three brokers and the alerts. The alerts need the job name `parley` and a label `cluster` |
| [alerts.yml](../deploy/monitoring/alerts.yml) | the alerts below |
| [dashboards/](../deploy/monitoring/dashboards) | six dashboards for Grafana. Import the files and choose the data source. They load nothing from other hosts |

Let Prometheus check the files before you use them:

```sh
promtool check config deploy/monitoring/prometheus.yml
promtool check rules deploy/monitoring/alerts.yml
```

## What to watch, and why

1. **Can clients read and write?** `parley_offline_partitions` and `parley_under_min_isr_partitions` are 0. All other signs are early warnings of these two.
2. **Is the data safe?** `parley_under_replicated_partitions` is 0 except during restarts, disks have space, and `parley_damaged_ranges_without_copy` is 0.
3. **Can the cluster react?** There is exactly one controller, and the coordination store responds. During an outage of the store, producing
   and consuming continue, so without an alert you do not notice the outage until a broker also fails.
4. **Is there room?** Watch `parley_event_loop_delay_seconds` for the processor, `parley_connections` against its limit, and the free space of disks.
5. **Do consumers keep up?** Watch `parley_group_lag_records`.
"""

_KAFKA_INTRODUCTION: Final = """\
## Kafka's table of metrics

The monitoring page of Apache Kafka 0.9 recommends these metrics. The table names the counterpart of each; [metrics](metrics.md) names those of newer metrics.

| in Kafka 0.9 | MBean | here |
|---|---|---|
"""

_KAFKA_REST: Final = """\
The rest of that page:

* **Garbage collection, processor, disks**: each broker exports `python_gc_collections_total`, `process_cpu_seconds_total` and `process_resident_memory_bytes`.
  For the machine's disks, use a node exporter.
* **Clients** keep their own metrics, with Parley as with Kafka: `producer-metrics` and others in Java, statistics in librdkafka. Brokers show
  traffic by topic, quotas by client, and the lag of groups.
* **Audit** of whether every message arrives: `parley check` produces and consumes records, and reports lost, duplicated and reordered ones.
"""

KAFKA_0_9: Final = (
    (
        "Message in rate",
        "kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec",
        "sum(rate(parley_topic_in_records_total[1m]))",
    ),
    (
        "Byte in rate",
        "kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec",
        "sum(rate(parley_topic_in_bytes_total[1m]))",
    ),
    (
        "Request rate",
        "kafka.network:type=RequestMetrics,name=RequestsPerSec,request={Produce|FetchConsumer|FetchFollower}",
        'sum by (api) (rate(parley_requests_total{api=~"Produce|FetchConsumer|FetchFollower"}[1m]))',
    ),
    (
        "Byte out rate",
        "kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec",
        "sum(rate(parley_topic_out_bytes_total[1m]))",
    ),
    (
        "Log flush rate",
        "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
        "rate(parley_log_flush_seconds_count[1m])",
    ),
    (
        "Log flush time",
        "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
        "histogram_quantile(0.99, sum by (le) (rate(parley_log_flush_seconds_bucket[1m])))",
    ),
    (
        "Under-replicated partitions",
        "kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions",
        "parley_under_replicated_partitions",
    ),
    (
        "Is controller active on broker",
        "kafka.controller:type=KafkaController,name=ActiveControllerCount",
        "parley_active_controller",
    ),
    (
        "Leader election rate",
        "kafka.controller:type=ControllerStats,name=LeaderElectionRateAndTimeMs",
        "rate(parley_leader_elections_total[1m])",
    ),
    (
        "Unclean leader election rate",
        "kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec",
        "rate(parley_unclean_leader_elections_total[1m])",
    ),
    ("Partition counts", "kafka.server:type=ReplicaManager,name=PartitionCount", "parley_replicas"),
    ("Leader replica counts", "kafka.server:type=ReplicaManager,name=LeaderCount", "parley_leader_replicas"),
    ("ISR shrink rate", "kafka.server:type=ReplicaManager,name=IsrShrinksPerSec", "rate(parley_isr_shrinks_total[1m])"),
    (
        "ISR expansion rate",
        "kafka.server:type=ReplicaManager,name=IsrExpandsPerSec",
        "rate(parley_isr_expands_total[1m])",
    ),
    (
        "Max lag in messages between follower and leader replicas",
        "kafka.server:type=ReplicaFetcherManager,name=MaxLag,clientId=Replica",
        "max(parley_replica_fetcher_max_lag_records)",
    ),
    (
        "Lag in messages per follower replica",
        "kafka.server:type=FetcherLagMetrics,name=ConsumerLag,clientId=*,topic=*,partition=*",
        "max by (topic, partition) (parley_log_end_offset) - on (topic, partition) group_right () parley_log_end_offset",
    ),
    (
        "Requests waiting in the producer purgatory",
        "kafka.server:type=ProducerRequestPurgatory,name=PurgatorySize",
        'parley_purgatory_size{operation="produce"}',
    ),
    (
        "Requests waiting in the fetch purgatory",
        "kafka.server:type=FetchRequestPurgatory,name=PurgatorySize",
        'parley_purgatory_size{operation="fetch"}',
    ),
    (
        "Request total time",
        "kafka.network:type=RequestMetrics,name=TotalTimeMs,request={Produce|FetchConsumer|FetchFollower}",
        'histogram_quantile(0.99, sum by (api, le) (rate(parley_request_duration_seconds_bucket{api=~"Produce|FetchConsumer|FetchFollower"}[1m])))',
    ),
    (
        "Time the request waits in the request queue",
        "kafka.network:type=RequestMetrics,name=QueueTimeMs,request={Produce|FetchConsumer|FetchFollower}",
        'rate(parley_request_queue_seconds_total{api=~"Produce|FetchConsumer|FetchFollower"}[1m]) / rate(parley_requests_total[1m])',
    ),
    (
        "Time the request is processed at the leader",
        "kafka.network:type=RequestMetrics,name=LocalTimeMs,request={Produce|FetchConsumer|FetchFollower}",
        'rate(parley_request_local_seconds_total{api=~"Produce|FetchConsumer|FetchFollower"}[1m]) / rate(parley_requests_total[1m])',
    ),
    (
        "Time the request waits for the follower",
        "kafka.network:type=RequestMetrics,name=RemoteTimeMs,request={Produce|FetchConsumer|FetchFollower}",
        'rate(parley_request_remote_seconds_total{api=~"Produce|FetchConsumer|FetchFollower"}[1m]) / rate(parley_requests_total[1m])',
    ),
    (
        "Time to send the response",
        "kafka.network:type=RequestMetrics,name=ResponseSendTimeMs,request={Produce|FetchConsumer|FetchFollower}",
        'rate(parley_response_send_seconds_total{api=~"Produce|FetchConsumer|FetchFollower"}[1m]) / rate(parley_requests_total[1m])',
    ),
    (
        "Number of messages the consumer lags behind the producer",
        "kafka.consumer:type=ConsumerFetcherManager,name=MaxLag,clientId=*",
        "max by (group) (parley_group_lag_records)",
    ),
    (
        "Average fraction of time the network processors are idle",
        "kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent",
        "1 - rate(process_cpu_seconds_total[1m])",
    ),
    (
        "Average fraction of time the request handler threads are idle",
        "kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent",
        "1 - rate(process_cpu_seconds_total[1m])",
    ),
    (
        "Quota: byte rate of a client id",
        "kafka.server:type={Produce|Fetch},client-id=*: byte-rate",
        'parley_client_quota_level{quota=~"produce|fetch"}',
    ),
    (
        "Quota: throttle time of a client id",
        "kafka.server:type={Produce|Fetch},client-id=*: throttle-time",
        "rate(parley_client_quota_throttle_seconds_total[1m])",
    ),
)
"""The rows of the table of Kafka's metrics: description, MBean, and query for Prometheus. A Parley broker is one event
loop, so Kafka's two kinds of threads have one counterpart."""


def monitoring_page() -> str:
    """Return the whole page, as Markdown."""
    return "\n".join([_INTRODUCTION, _alerts(), _dashboards(), _KAFKA_INTRODUCTION + _kafka_rows()])


def _alerts() -> str:
    lines = [
        "## Alerts",
        "",
        f"{len(ALERTS)} alerts. `critical`: clients are affected, or will be after the next fault. `warning`: check within a day.",
        "",
    ]
    for group in GROUPS:
        lines += [f"### {group.name.capitalize()}", "", "| alert | when | what to do |", "|---|---|---|"]
        lines += [_alert_row(alert) for alert in group.alerts]
        lines.append("")
    return "\n".join(lines)


def _alert_row(alert: Alert) -> str:
    expr = _cell(alert.expr)
    wait = "immediately" if alert.wait == "0s" else f"for {alert.wait}"
    page = alert.runbook.partition("#")[0].removesuffix(".md")
    action = _cell(alert.action)
    return f"| `{alert.name}`, {alert.severity} | `{expr}`, {wait} | {action} ([{page}]({alert.runbook})) |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _dashboards() -> str:
    lines = ["## Dashboards", ""]
    for dashboard in DASHBOARDS:
        lines += [
            f"### {dashboard.title.removeprefix('Parley: ').capitalize()}",
            "",
            f"[{_file(dashboard)}](../{_file(dashboard)})",
            "",
            "| panel | what to look for | metrics |",
            "|---|---|---|",
        ]
        for panel in dashboard.panels:
            names = sorted({name for query in panel.queries for name in metrics_in(query.expr)})
            shown = ", ".join(f"`{name}`" for name in names)
            lines.append(f"| {panel.title} | {panel.why} | {shown} |")
        lines.append("")
    lines += [
        "A worker of `parley connect` exports no metrics. Its REST API shows the states of connectors and tasks.",
        "",
    ]
    return "\n".join(lines)


def _file(dashboard: Dashboard) -> str:
    return f"deploy/monitoring/dashboards/{dashboard.uid}.json"


def metrics_in(expr: str) -> set[str]:
    """Return the names of the metrics that a query reads: ``up``, and those that begin with parley_ or process_."""
    return set(re.findall(r"\b(?:parley|process)_[a-z0-9_]+|\bup\b", re.sub(r'"[^"]*"', "", expr)))


def _kafka_rows() -> str:
    rows = "".join(f"| {what} | `{_cell(mbean)}` | `{_cell(query)}` |\n" for what, mbean, query in KAFKA_0_9)
    return f"{rows}\n{_KAFKA_REST}"
