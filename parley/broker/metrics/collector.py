"""Converts a broker's values to Prometheus metric families."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from parley.broker.metrics.catalogue import CATALOGUE
from parley.broker.metrics.instruments import Instruments
from parley.broker.metrics.registry import Sample, Snapshot

_FIRST_BIT, _LAST_BIT = 6, 26
"""Durations are exported in buckets from 2**6 us (64 us) to 2**26 us (67 s). Each bucket is twice as wide as the
previous one."""


class BrokerCollector(Collector):
    """A collector that the Prometheus registry calls at each scrape. It also lists the metrics that have no value
    yet."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        """``snapshot`` is called in the thread that serves the scrape."""
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        samples: dict[type[Instruments], list[Sample]] = {}
        for instruments, found in self._snapshot():
            samples.setdefault(instruments, []).extend(found)
        for instruments in CATALOGUE:
            yield from _families(instruments, samples.get(instruments, ()))

    def describe(self) -> Iterator[Metric]:
        """Yield the families without values, by which the registry identifies this collector."""
        for instruments in CATALOGUE:
            yield from _families(instruments, ())


def _families(instruments: type[Instruments], samples: Sequence[Sample]) -> Iterator[Metric]:
    for index, instrument in enumerate(instruments.INSTRUMENTS.values()):
        family = _FAMILIES[instrument.kind](instrument.name, instrument.doc, labels=instruments.LABELS)
        for sample in samples:
            value = sample.values[index]
            if value is None:
                continue
            if isinstance(family, HistogramMetricFamily):
                buckets, total = value
                family.add_metric(sample.labels, _cumulative(buckets), total / 1e6)
            else:
                family.add_metric(sample.labels, value)
        yield family


_FAMILIES: dict[str, type[CounterMetricFamily] | type[GaugeMetricFamily] | type[HistogramMetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _cumulative(buckets: Sequence[int]) -> Sequence[tuple[str, float]]:
    """Return the cumulative counts. Bucket n counts durations below 2**n microseconds that are in no earlier bucket."""
    sums = list(accumulate(buckets))
    return [(bound, sums[bit]) for bit, bound in _BOUNDS] + [("+Inf", sums[-1])]


_BOUNDS = tuple((bit, repr(2**bit / 1e6)) for bit in range(_FIRST_BIT, _LAST_BIT + 1))
