"""Metrics and logs."""

from __future__ import annotations

from parley.broker.config.key_definition import (
    CLUSTER_WIDE,
    LOW,
    MAX_LONG,
    Keys,
    boolean,
    integer,
    long,
    string,
    strings,
)
from parley.broker.config.keys.reasons import METRICS, METRICS_PUSH


def http_address(text: str) -> bool:
    """Return True if the text is empty or the address of an HTTP listener, as host:port, http://... or https://..."""
    host, _, port = text.removeprefix("http://").removeprefix("https://").rpartition(":")
    return not text or (bool(host) and "/" not in host and port.isdecimal() and int(port) <= 65535)


class ObservabilityKeys(Keys, title="Metrics and logging"):
    """Metrics and logs."""

    metrics_listener = string(
        "metrics.listener",
        "",
        "The address, as host:port or https://host:port, of the HTTP listener with /metrics for Prometheus and "
        "/healthz for probes. An empty value means no such listener; port 0 means any free port. With https, the "
        "keys listener.name.metrics.ssl.* apply. Clients must log in if listener.name.metrics.plain.sasl.jaas.config "
        "defines users.",
        check=http_address,
        form="host:port, https://host:port, or nothing",
        since="",
    )
    metrics_group_partitions_max = integer(
        "metrics.group.partitions.max",
        5_000,
        "The maximum number of partitions of groups whose lag this broker exports, and of groups whose members it "
        "exports. The broker that coordinates a group exports them. 0 exports none.",
        at_least=0,
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        since="",
    )
    logging_format = string(
        "logging.format",
        "text",
        "The format of the broker's own log: text writes one line of key=value pairs per event, json writes one JSON "
        "object per event.",
        allowed=("text", "json"),
        importance=LOW,
        since="",
    )
    logging_level = string(
        "logging.level",
        "info",
        "The lowest level of events in the broker's own log.",
        allowed=("debug", "info", "warning", "error"),
        importance=LOW,
        since="",
    )
    metric_reporters = strings(
        "metric.reporters",
        (),
        "Classes that are notified of new metrics.",
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        ignored=METRICS,
    )
    metrics_num_samples = integer(
        "metrics.num.samples",
        2,
        "The number of samples from which Kafka computes a metric.",
        at_least=1,
        importance=LOW,
        ignored=METRICS,
    )
    metrics_sample_window_ms = long(
        "metrics.sample.window.ms",
        30_000,
        "The time window of a sample of a Kafka metric.",
        at_least=1,
        unit="ms",
        importance=LOW,
        ignored=METRICS,
    )
    metrics_recording_level = string(
        "metrics.recording.level",
        "INFO",
        "The level of detail of Kafka's metrics.",
        importance=LOW,
        since="0.10.2 (KIP-105)",
        ignored=METRICS,
    )
    kafka_metrics_reporters = strings(
        "kafka.metrics.reporters",
        (),
        "Classes that are notified of Yammer metrics.",
        importance=LOW,
        since="0.10.0",
        ignored=METRICS,
    )
    kafka_metrics_polling_interval_secs = integer(
        "kafka.metrics.polling.interval.secs",
        10,
        "How often the classes of kafka.metrics.reporters are called.",
        at_least=1,
        unit="s",
        importance=LOW,
        since="0.10.0",
        ignored=METRICS,
    )
    auto_include_jmx_reporter = boolean(
        "auto.include.jmx.reporter",
        True,
        "Whether metrics are reported through JMX even if metric.reporters does not include it.",
        importance=LOW,
        since="3.4 (KIP-830)",
        ignored=METRICS,
    )
    telemetry_max_bytes = integer(
        "telemetry.max.bytes",
        1_048_576,
        "The maximum size of a client's metrics report.",
        at_least=1,
        unit="bytes",
        importance=LOW,
        since="3.7 (KIP-714)",
        ignored=METRICS_PUSH,
    )
    server_max_startup_time_ms = long(
        "server.max.startup.time.ms",
        MAX_LONG,
        "The maximum duration of a start before it is abandoned.",
        at_least=0,
        unit="ms",
        since="3.5",
        ignored="A start is never abandoned; `/healthz` shows its progress.",
    )
    config_providers = strings(
        "config.providers",
        (),
        "Names of providers of values that the file only refers to: ${provider:path:key}. For each provider, "
        "config.providers.<name>.class is the class: FileConfigProvider, DirectoryConfigProvider or "
        "EnvVarConfigProvider; config.providers.<name>.param.<key> are its parameters.",
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        since="2.3 (KIP-421)",
    )
