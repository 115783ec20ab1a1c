"""Metrics as plain numbers in slots, and snapshots of them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.broker.metrics.catalogue import CATALOGUE
from parley.broker.metrics.catalogue.clients import ListenerMetrics, RequestMetrics, TopicMetrics
from parley.broker.metrics.instruments import Histogram, Instruments, counter, gauge
from parley.broker.metrics.registry import Metrics


def test_counting_is_plain_addition() -> None:
    topic = TopicMetrics()
    topic.bytes_in += 5
    topic.bytes_in += 6
    assert (topic.bytes_in, topic.bytes_out) == (11, 0)
    assert not hasattr(topic, "__dict__")


def test_values_can_be_given() -> None:
    assert ListenerMetrics(connections=3).connections == 3
    with pytest.raises(TypeError, match="connectoins"):
        ListenerMetrics(connectoins=3)


def test_a_subclass_of_an_instrument_is_collected() -> None:
    class Route(RequestMetrics):
        __slots__ = ("name",)

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    route = Route("Produce")
    route.requests += 1
    assert Route.INSTRUMENTS is RequestMetrics.INSTRUMENTS
    assert not hasattr(route, "__dict__")


@given(st.lists(st.integers(min_value=0, max_value=2**63 - 1)))
def test_a_histogram_counts_every_value_below_its_bound(values: list[int]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    assert histogram.total == sum(values)
    for bit in range(64):
        assert sum(histogram.buckets[: bit + 1]) == sum(value < 2**bit for value in values)


def test_a_snapshot_contains_the_watched_metrics() -> None:
    metrics = Metrics()
    metrics.topic("a").bytes_in += 1
    assert metrics.topic("a") is metrics.topic("a")
    listeners = {"PLAINTEXT": ListenerMetrics(connections=2)}
    metrics.watch(ListenerMetrics, lambda: (((name,), listener) for name, listener in listeners.items()))

    snapshot = dict(metrics.snapshot())
    (topic,) = snapshot[TopicMetrics]
    assert (topic.labels, topic.values[0]) == (("a",), 1)
    (listener,) = snapshot[ListenerMetrics]
    assert (listener.labels, listener.values[0]) == (("PLAINTEXT",), 2)

    metrics.topic("a").bytes_in += 1
    assert topic.values[0] == 1, "a snapshot does not change"
    metrics.forget_topic("a")
    assert dict(metrics.snapshot())[TopicMetrics] == []


def test_any_object_with_the_attributes_will_do() -> None:
    class Pair(Instruments, labels=(), title="Pair"):
        first: int = counter("parley_first", "First.")
        second: int = gauge("parley_second", "Second.")

    class Elsewhere:
        first, second = 1, 2

    metrics = Metrics()
    metrics.watch(Pair, lambda: [((), Elsewhere())])
    assert dict(metrics.snapshot())[Pair][0].values == (1, 2)


def test_names_are_as_prometheus_wants_them() -> None:
    names = [instrument.name for instruments in CATALOGUE for instrument in instruments.INSTRUMENTS.values()]
    assert len(set(names)) == len(names)
    for instruments in CATALOGUE:
        assert instruments.TITLE
        for instrument in instruments.INSTRUMENTS.values():
            assert re.fullmatch(r"parley_[a-z_]+", instrument.name)
            assert not instrument.name.endswith("_total"), "the exporter adds it"
            assert instrument.doc.endswith(".")
            assert (instrument.kind == "histogram") == bool(instrument.unit)
