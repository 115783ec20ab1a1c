"""How metrics are written down and counted.

    class TopicMetrics(Instruments, labels=("topic",), title="Topics"):
        bytes_in: int = counter("parley_topic_in_bytes", "Bytes of records taken from producers.", "kafka.server:...")

An instance is one object with slots, a plain number in each: counting is ``topic.bytes_in += size``, which costs some
ten nanoseconds, takes no lock and knows nothing of Prometheus. The numbers belong to the event loop's thread. What a
name means, its unit and the MBean Kafka has for it are in the class, from which the exporter and the documentation
take them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple


class Instrument(NamedTuple):
    """The definition of one metric. Kinds and names as in Prometheus, without the suffix ``_total`` of counters."""

    kind: str
    name: str
    doc: str
    mbean: str
    """Kafka's name for the same thing; "" where it has none."""
    unit: str = ""
    """How an instrument's own numbers become the name's unit, for histograms: see ``Histogram``."""

    @property
    def exported_name(self) -> str:
        """The name as it is scraped."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def counter(name: str, doc: str, mbean: str = "") -> Any:
    """A number that only grows: what happened since the broker began. Starts at 0."""
    return Instrument("counter", name, doc, mbean)


def gauge(name: str, doc: str, mbean: str = "") -> Any:
    """A number as it is now. Starts at 0."""
    return Instrument("gauge", name, doc, mbean)


def seconds_histogram(name: str, doc: str, mbean: str = "") -> Any:
    """How long something took, observed in microseconds."""
    return Instrument("histogram", name, doc, mbean, "us")


class Histogram:
    """Counts whole numbers by their bit length: bucket n has those below 2**n that no earlier bucket has.

    There is no search and no bound to choose: neighbouring buckets differ by a factor of two.
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
    """Turns the definitions in a class body into slots."""

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
    """Base of the classes that list instruments. A subclass without instruments of its own inherits them."""

    INSTRUMENTS: ClassVar[Mapping[str, Instrument]] = {}
    LABELS: ClassVar[tuple[str, ...]] = ()
    TITLE: ClassVar[str] = ""
    """The heading of the list in the documentation."""

    def __init__(self, **values: float) -> None:
        """Everything at 0, except what is given."""
        for attribute, instrument in self.INSTRUMENTS.items():
            setattr(self, attribute, Histogram() if instrument.kind == "histogram" else values.pop(attribute, 0))
        if values:
            raise TypeError(f"{type(self).__name__} has no {', '.join(values)}")
