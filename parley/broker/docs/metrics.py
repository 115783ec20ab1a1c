"""The page ``docs/metrics.md``, made of the catalogue."""

from __future__ import annotations

from parley.broker.metrics.catalogue import CATALOGUE
from parley.broker.metrics.instruments import Instruments

_INTRODUCTION = """\
# Metrics

This page is made from `parley/broker/metrics/catalogue.py` by `make docs`; do not edit it.

With `metrics.listener=host:port` a broker answers `GET /metrics` in Prometheus' text format (or OpenMetrics, where the
scraper asks for it) and `GET /healthz` with its state as JSON: status 200 when it serves, else 503, with what is wrong.

Counters only grow; a rate is `rate(parley_topic_in_bytes_total[1m])`. The mean of a part of the time of requests is
`rate(parley_request_local_seconds_total[1m]) / rate(parley_requests_total[1m])`; a quantile of the whole is
`histogram_quantile(0.99, rate(parley_request_duration_seconds_bucket[1m]))`. Beside each metric stands the MBean in
which Kafka has it. `process_*`, `python_info` and `python_gc_*` come from Prometheus' own client library.
"""


def metrics_page() -> str:
    """The whole page, in Markdown."""
    return "\n".join([_INTRODUCTION, *(_section(instruments) for instruments in CATALOGUE)])


def _section(instruments: type[Instruments]) -> str:
    labels = ", ".join(f"`{label}`" for label in instruments.LABELS)
    lines = [
        f"## {instruments.TITLE}",
        "",
        instruments.__doc__ or "",
        "",
        *([f"Labels: {labels}.", ""] if labels else []),
        "| metric | kind | what it is | in Kafka |",
        "|---|---|---|---|",
    ]
    for instrument in instruments.INSTRUMENTS.values():
        mbean = f"`{instrument.mbean}`" if instrument.mbean else ""
        lines.append(f"| `{instrument.exported_name}` | {instrument.kind} | {instrument.doc} | {mbean} |")
    return "\n".join([*lines, ""])
