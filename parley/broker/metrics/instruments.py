"""The definition and counting of metrics.

A class defines the metrics of one subject::

    class TopicMetrics(Instruments, labels=("topic",), title="Topics"):
        bytes_in: int = counter("parley_topic_in_bytes", "Bytes of records from producers.", "kafka.server:...")

Each instance has a plain number for each metric. Counting is ``topic.bytes_in += size``, which takes about ten
nanoseconds and no lock. Only the event loop's thread may use the numbers. The exporter and the documentation read the
description, the unit and Kafka's MBean of each metric from the class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple


class Instrument(NamedTuple):
    """The definition of one metric. Kinds and names are those of Prometheus, without the suffix ``_total``
    of counters."""

    kind: str
    name: str
    doc: str
    mbean: str
    """The corresponding MBean of Kafka; empty if there is none."""
    unit: str = ""
    """The unit of the values that a histogram observes (see ``Histogram``); empty for other kinds."""

    @property
    def exported_name(self) -> str:
        """The name of the metric in the text that Prometheus scrapes."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def counter(name: str, doc: str, mbean: str = "") -> Any:
    """Define a metric that only increases, from 0 at the start of the broker. ``doc`` describes it in the
    documentation; ``mbean`` is the corresponding MBean of Kafka."""
    return Instrument("counter", name, doc, mbean)


def gauge(name: str, doc: str, mbean: str = "") -> Any:
    """Define a metric that can rise and fall, initially 0. The arguments are those of ``counter``."""
    return Instrument("gauge", name, doc, mbean)


def seconds_histogram(name: str, doc: str, mbean: str = "") -> Any:
    """Define a distribution of durations. They are observed in microseconds and exported in seconds. The arguments are
    those of ``counter``."""
    return Instrument("histogram", name, doc, mbean, "us")


class Histogram:
    """Counts integers by their bit length: bucket n counts numbers below 2**n that are in no earlier bucket.

    This requires neither a search nor a choice of bounds: each bucket is twice as wide as the previous one.
    """

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * 64
        self.total = 0

    def observe(self, value: int) -> None:
        """Count a value from 0 to 2**63 - 1."""
        self.buckets[value.bit_length()] += 1
        self.total += value


class _InstrumentsType(type):
    """Replaces the definitions in a class body with slots."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        labels: tuple[str, ...] = (),
        title: str = "",
    ) -> _InstrumentsType:
        own = {attribute: value for attribute, value in namespace.items() if isinstance(value, Instrument)}
        for attribute in own:
            del namespace[attribute]
        namespace["__slots__"] = (*namespace.get("__slots__", ()), *own)
        made = super().__new__(mcs, name, bases, namespace)
        if own:
            made.INSTRUMENTS = own  # type: ignore[attr-defined]
            made.LABELS = labels  # type: ignore[attr-defined]
            made.TITLE = title  # type: ignore[attr-defined]
        return made

    def __init__(
        cls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        labels: tuple[str, ...] = (),
        title: str = "",
    ) -> None:
        super().__init__(name, bases, namespace)


class Instruments(metaclass=_InstrumentsType):
    """Base class of lists of instruments. A subclass without its own instruments inherits them."""

    INSTRUMENTS: ClassVar[Mapping[str, Instrument]] = {}
    LABELS: ClassVar[tuple[str, ...]] = ()
    TITLE: ClassVar[str] = ""
    """The heading of the list in the documentation."""

    def __init__(self, **values: float) -> None:
        """Set all values to 0 except the given ones. Raises TypeError if the class does not define one of the given
        names."""
        for attribute, instrument in self.INSTRUMENTS.items():
            setattr(self, attribute, Histogram() if instrument.kind == "histogram" else values.pop(attribute, 0))
        if values:
            raise TypeError(f"{type(self).__name__} has no {', '.join(values)}")
