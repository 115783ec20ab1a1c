"""The registry of a broker's metrics, between the parts that count and the exporter.

``Metrics.topic`` returns counters that several parts share. For all other values, ``Metrics.watch`` registers a
function that returns labels and objects at each scrape. It is called in the event loop's thread, so that it can read
anything, and must return within milliseconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from parley.broker.metrics.catalogue.clients import TopicMetrics
from parley.broker.metrics.catalogue.process import ProcessMetrics
from parley.broker.metrics.instruments import Histogram, Instruments

_log = logging.getLogger(__name__)

Labeled = tuple[tuple[str, ...], object]
"""The values of the labels, and an object of any type with the attributes that the instruments' class defines."""


class Sample(NamedTuple):
    """The values of one object at a scrape; None for a value that could not be read. A histogram is
    (buckets, total)."""

    labels: tuple[str, ...]
    values: tuple[Any, ...]


Snapshot = list[tuple[type[Instruments], list[Sample]]]


class Metrics:
    """The metrics of one broker."""

    def __init__(self) -> None:
        self.process = ProcessMetrics()
        self._topics: dict[str, TopicMetrics] = {}
        self._complained: set[str] = set()
        self._watched: list[tuple[type[Instruments], Callable[[], Iterable[Labeled]]]] = []
        self.watch(TopicMetrics, lambda: (((name,), topic) for name, topic in self._topics.items()))
        self.watch(ProcessMetrics, lambda: (((), self.process),))

    def topic(self, name: str) -> TopicMetrics:
        """Return the counters of a topic, which are exported from now on. Keep the object if you use it often."""
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = TopicMetrics()
        return topic

    def forget_topic(self, name: str) -> None:
        """Stop exporting a topic that this broker no longer hosts."""
        self._topics.pop(name, None)

    def watch(self, instruments: type[Instruments], labeled: Callable[[], Iterable[Labeled]]) -> None:
        """Export, at each scrape, the objects that ``labeled`` returns, with the attributes that ``instruments``
        defines. If ``labeled`` or an attribute raises, the values are left out, and the first such error is logged."""
        self._watched.append((instruments, labeled))

    def snapshot(self) -> Snapshot:
        """Return the current values of all metrics, without those that cannot be read. Must be called in the event
        loop's thread."""
        return [(instruments, self._samples(instruments, labeled)) for instruments, labeled in self._watched]

    def _samples(self, instruments: type[Instruments], labeled: Callable[[], Iterable[Labeled]]) -> list[Sample]:
        """Return the values of one class of instruments. A value that cannot be read is None."""
        read = _reader(instruments)
        samples = []
        try:
            for labels, counted in labeled():
                try:
                    values = read(counted)
                except Exception:
                    values = tuple(self._read_alone(instruments, name, counted) for name in instruments.INSTRUMENTS)
                samples.append(Sample(labels, values))
        except Exception as error:
            self._complain(instruments.TITLE or instruments.__name__, error)
        return samples

    def _read_alone(self, instruments: type[Instruments], attribute: str, counted: object) -> Any:
        try:
            value = getattr(counted, attribute)
        except Exception as error:
            self._complain(instruments.INSTRUMENTS[attribute].exported_name, error)
            return None
        return (tuple(value.buckets), value.total) if isinstance(value, Histogram) else value

    def _complain(self, what: str, error: Exception) -> None:
        """Log that a metric cannot be read, but only the first time for each source, because scrapes occur every few
        seconds."""
        if what not in self._complained:
            self._complained.add(what)
            _log.error("a metric cannot be read and is left out", exc_info=error, extra={"metric": what})


def _reader(instruments: type[Instruments]) -> Callable[[object], tuple[Any, ...]]:
    kinds = [instrument.kind for instrument in instruments.INSTRUMENTS.values()]
    get = attrgetter(*instruments.INSTRUMENTS)

    def read(counted: object) -> tuple[Any, ...]:
        values = get(counted)
        if len(kinds) == 1:
            values = (values,)
        if "histogram" not in kinds:
            return tuple(values)
        return tuple((tuple(v.buckets), v.total) if isinstance(v, Histogram) else v for v in values)

    return read
