"""The page ``/metrics``, which prometheus_client writes. ``exporter`` imports this module after the start, because
importing prometheus_client is slow."""

from __future__ import annotations

from typing import Any, Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, make_wsgi_app

from parley.broker.metrics.collector import BrokerCollector
from parley.broker.metrics.http_messages import HttpRequest, HttpResponse
from parley.broker.metrics.registry import Snapshot

_PROCESS: Final = (ProcessCollector(registry=None), PlatformCollector(registry=None))


def metrics_page(request: HttpRequest, snapshot: Snapshot) -> HttpResponse:
    """Return the metrics of the broker and its process, in the format that the client accepts. Takes milliseconds of
    CPU: call it in a thread."""
    registry = CollectorRegistry()
    registry.register(BrokerCollector(lambda: snapshot))
    for collector in _PROCESS:
        registry.register(collector)
    GCCollector(registry=registry)
    head: list[Any] = []
    body = b"".join(make_wsgi_app(registry)(request.environ(), lambda *given: head.extend(given)))
    status, headers = head
    return HttpResponse(status, body, headers)
