"""The process of the broker, and what it runs out of."""

from __future__ import annotations

from parley.broker.metrics.instruments import Instruments, counter, gauge


class ProcessMetrics(Instruments, title="Process"):
    """The process of this broker, in addition to the ``process_*`` and ``python_gc_*`` of Prometheus' client."""

    loop_delay_seconds: float = gauge(
        "parley_event_loop_delay_seconds",
        "How long the scrape waited for the event loop. A request arriving at that moment would have waited as long.",
        "kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent",
    )
    start_time_seconds: float = gauge(
        "parley_start_time_seconds", "The time when the broker became ready, in seconds since 1970-01-01 UTC."
    )


class ShortageMetrics(Instruments, title="Shortages", labels=("resource",)):
    """What the process has run out of: file descriptors, memory."""

    shortages: int = counter("parley_shortages", "Work that met a shortage since the process began.")
    is_short: int = gauge("parley_short", "1 while the broker lives on its reserve, or cannot refill it.")
