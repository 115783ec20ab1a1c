"""Metrics and logs."""

from __future__ import annotations

from parley.broker.config.definition import CLUSTER_WIDE, LOW, MAX_LONG, Keys, boolean, integer, long, string, strings
from parley.broker.config.keys.reasons import METRICS, METRICS_PUSH


def _metrics_listener(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return not text or (bool(host) and port.isdecimal() and int(port) <= 65535)


class ObservabilityKeys(Keys, title="Metrics and logging"):
    """Metrics and logs."""

    metrics_listener = string(
        "metrics.listener",
        "",
        "The address, as host:port, where /metrics answers with the broker's numbers for Prometheus and "
        "/healthz says whether it is ready. Empty: no such listener; port 0: any free port.",
        check=_metrics_listener,
        form="host:port, or nothing",
        since="",
    )
    logging_format = string(
        "logging.format",
        "text",
        "How the broker writes its own log: text has one line of key=value pairs for an event, json one JSON object.",
        allowed=("text", "json"),
        importance=LOW,
        since="",
    )
    logging_level = string(
        "logging.level",
        "info",
        "The least important lines of the broker's own log that are written.",
        allowed=("debug", "info", "warning", "error"),
        importance=LOW,
        since="",
    )
    metric_reporters = strings(
        "metric.reporters",
        (),
        "Classes that are told of new metrics.",
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        ignored=METRICS,
    )
    metrics_num_samples = integer(
        "metrics.num.samples",
        2,
        "How many samples a metric of Kafka is computed from.",
        at_least=1,
        importance=LOW,
        ignored=METRICS,
    )
    metrics_sample_window_ms = long(
        "metrics.sample.window.ms",
        30_000,
        "How long a sample of a Kafka metric is taken.",
        at_least=1,
        unit="ms",
        importance=LOW,
        ignored=METRICS,
    )
    metrics_recording_level = string(
        "metrics.recording.level",
        "INFO",
        "How detailed Kafka's metrics are.",
        importance=LOW,
        since="0.10.2 (KIP-105)",
        ignored=METRICS,
    )
    kafka_metrics_reporters = strings(
        "kafka.metrics.reporters",
        (),
        "Classes that are told of Yammer's metrics.",
        importance=LOW,
        since="0.10.0",
        ignored=METRICS,
    )
    kafka_metrics_polling_interval_secs = integer(
        "kafka.metrics.polling.interval.secs",
        10,
        "How often the classes of kafka.metrics.reporters are told of metrics.",
        at_least=1,
        unit="s",
        importance=LOW,
        since="0.10.0",
        ignored=METRICS,
    )
    auto_include_jmx_reporter = boolean(
        "auto.include.jmx.reporter",
        True,
        "Whether metrics are reported by JMX though metric.reporters does not say so.",
        importance=LOW,
        since="3.4 (KIP-830)",
        ignored=METRICS,
    )
    telemetry_max_bytes = integer(
        "telemetry.max.bytes",
        1_048_576,
        "The longest report of its metrics a client may push.",
        at_least=1,
        unit="bytes",
        importance=LOW,
        since="3.7 (KIP-714)",
        ignored=METRICS_PUSH,
    )
    server_max_startup_time_ms = long(
        "server.max.startup.time.ms",
        MAX_LONG,
        "How long the start may take before it is given up.",
        at_least=0,
        unit="ms",
        since="3.5",
        ignored="A start is never given up; `/healthz` says how far it has come.",
    )
    config_providers = strings(
        "config.providers",
        (),
        "Classes that look up values given as ${provider:path:key}.",
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        since="2.3 (KIP-421)",
        ignored="Values are taken as they stand.",
    )
