"""Generates ``docs/metrics.md`` from the catalogue of metrics."""

from __future__ import annotations

from inspect import cleandoc

from parley.broker.metrics.catalogue import CATALOGUE
from parley.broker.metrics.instruments import Instruments

_INTRODUCTION = """\
# Metrics

`make docs` generates this page from `parley/broker/metrics/catalogue/`; do not edit it.

With `metrics.listener=host:port` a broker serves `GET /metrics` in Prometheus' text format (or OpenMetrics, if the
scraper requests it) and the pages for probes, `/healthz`, `/readyz`, `/livez`, `/insyncz` and `/stopz`
([health](operations.md#health-and-metrics)).
[Security](security.md#metrics-and-health) describes TLS and logins.

Counters only increase; a rate is `rate(parley_topic_in_bytes_total[1m])`. The mean time of requests in a stage is
`rate(parley_request_local_seconds_total[1m]) / rate(parley_requests_total[1m])`; a quantile of their total time is
`histogram_quantile(0.99, rate(parley_request_duration_seconds_bucket[1m]))`. The last column contains the
corresponding MBean of Kafka. `process_*`, `python_info` and `python_gc_*` come from Prometheus' client library.
"""


def metrics_page() -> str:
    """Return the whole page, as Markdown."""
    return "\n".join([_INTRODUCTION, *(_section(instruments) for instruments in CATALOGUE)])


def _section(instruments: type[Instruments]) -> str:
    labels = ", ".join(f"`{label}`" for label in instruments.LABELS)
    lines = [
        f"## {instruments.TITLE}",
        "",
        cleandoc(instruments.__doc__ or "").replace("``", "`"),
        "",
        *([f"Labels: {labels}.", ""] if labels else []),
        "| metric | kind | description | in Kafka |",
        "|---|---|---|---|",
    ]
    for instrument in instruments.INSTRUMENTS.values():
        mbean = instrument.mbean.replace("|", r"\|")  # an unescaped bar ends the cell, even within backticks
        lines.append(
            f"| `{instrument.exported_name}` | {instrument.kind} | {instrument.doc} | {f'`{mbean}`' if mbean else ''} |"
        )
    return "\n".join([*lines, ""])
