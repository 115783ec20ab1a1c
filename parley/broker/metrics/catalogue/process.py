"""Metrics of the broker's process, and of the resources that it has run out of."""

from __future__ import annotations

from parley.broker.metrics.instruments import Instruments, counter, gauge


class ProcessMetrics(Instruments, title="Process"):
    """This broker's process. These metrics complement the ``process_*`` and ``python_gc_*`` metrics of the Prometheus
    client."""

    loop_delay_seconds: float = gauge(
        "parley_event_loop_delay_seconds",
        "How long the scrape waited for the event loop. A request that arrived at that moment would have waited "
        "equally long.",
        "kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent",
    )
    start_time_seconds: float = gauge(
        "parley_start_time_seconds", "The time when the broker became ready, in seconds since 1970-01-01 UTC."
    )


class ShortageMetrics(Instruments, title="Shortages", labels=("resource",)):
    """The resources that the process has run out of: file descriptors, memory."""

    shortages: int = counter(
        "parley_shortages", "Operations that failed because of a shortage since the process started."
    )
    is_short: int = gauge("parley_short", "1 while the broker uses its reserve or cannot refill it.")
