"""Fetch the metrics and the health of a broker. Blocks; run it in a thread."""

from __future__ import annotations

import json
import ssl
from typing import Final

from parley.tools.doctor.facts import Metrics
from parley.tools.doctor.gathering_http import NoPage, fetched, shown

_WANTED: Final = ("parley_", "process_")


def metrics_at(url: str, limit_s: float, tls: ssl.SSLContext | None = None) -> Metrics:
    """Return the metrics and the health at ``http[s]://[user:password@]host:port``. Raises ``NoPage`` if the metrics
    cannot be read."""
    from prometheus_client.parser import text_string_to_metric_families

    page = fetched(f"{url}/metrics", limit_s, tls)
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    try:
        for family in text_string_to_metric_families(page.text):
            for sample in family.samples:
                if sample.name.startswith(_WANTED):
                    samples.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    except ValueError as error:
        raise NoPage(f"{shown(url)}/metrics is not in Prometheus' format: {error}") from error
    return Metrics(shown(url), samples, _problems(url, limit_s, tls), page.clock_ahead_s)


def _problems(url: str, limit_s: float, tls: ssl.SSLContext | None) -> list[str]:
    """Return the problems that ``/healthz`` reports. Returns an empty list if it cannot be read, or hides details from
    this client."""
    try:
        found = json.loads(fetched(f"{url}/healthz", limit_s, tls).text)
    except (NoPage, ValueError):
        return []
    problems = found.get("problems") if isinstance(found, dict) else None
    return [f"{what}: {text}" for what, text in problems.items()] if isinstance(problems, dict) else []
