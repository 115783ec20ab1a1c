"""Mirrors in the console, as their heartbeats show them, and a real mirror that copies to the broker."""

from __future__ import annotations

import pytest

from parley import Broker
from parley.pipeline.mirror.internal_records import Heartbeat, Progress
from parley.protocol.records.record import Record
from parley.tools.console.mirrors_api import shown
from tests.pipeline.mirror.clusters import create, mirror, produce, properties
from tests.tools.console.conftest import Browser

NOW = 1_700_000_000_000


def beat(before_ms: int, records: int = 0, lag: int = 0, source: str = "A") -> Record:
    """A heartbeat of Parley."""
    heartbeat = Heartbeat(source, "B", NOW - before_ms, Progress(f"{source}->B", 1, records, 100 * records, lag))
    return Record(0, -1, *heartbeat.encode())


def mirror_maker_beat(before_ms: int) -> Record:
    """A heartbeat of MirrorMaker, which has no headers."""
    return Record(0, -1, *Heartbeat("M", "B", NOW - before_ms).encode())


def test_rate_and_time_left() -> None:
    (flow,) = shown([beat(40_000, 0, 9999), beat(20_000, 1000, 3000), beat(1000, 2900, 1100)], NOW)
    assert (flow["rate"], flow["lag"], flow["remainingMs"]) == (100, 1100, 11_000)
    assert (flow["source"], flow["target"], flow["silent"], flow["ageMs"]) == ("A", "B", False, 1000)


def test_the_rate_begins_again_after_a_restart() -> None:
    (flow,) = shown([beat(9000, 5000), beat(8000, 6000), beat(5000, 0, 400), beat(1000, 400, 100)], NOW)
    assert (flow["rate"], flow["remainingMs"]) == (100, 1000)


@pytest.mark.parametrize(
    "records", [[beat(1000, 10)], [beat(1000, 10), beat(1000, 20)], [beat(5000, 9), beat(1000, 9)]]
)
def test_without_a_rate_the_time_left_is_unknown(records: list[Record]) -> None:
    (flow,) = shown(records, NOW)
    assert flow["remainingMs"] is None
    assert not flow["rate"]


def test_a_flow_without_heartbeats_is_silent() -> None:
    (flow,) = shown([beat(20_000, 10), beat(19_000, 20)], NOW)
    assert (flow["silent"], flow["rate"], flow["remainingMs"], flow["ageMs"]) == (True, None, None, 19_000)
    (rare,) = shown([beat(70_000), beat(40_000), beat(12_000)], NOW)
    assert not rare["silent"], "its heartbeats come every 30 s"


def test_flows_of_mirror_maker_show_that_they_are_alive() -> None:
    flows = shown([mirror_maker_beat(1500), beat(1000, 7), Record(0, -1, b"x", b"y"), mirror_maker_beat(500)], NOW)
    assert [one["source"] for one in flows] == ["A", "M"]
    assert (flows[1]["silent"], flows[1]["lag"], flows[1]["rate"]) == (False, None, None)


@pytest.mark.slow
async def test_a_mirror_is_shown_while_it_copies(stored_broker: tuple[Broker, str], browser: Browser) -> None:
    target = stored_broker[0].bootstrap_servers
    with Broker() as source:
        create(source.bootstrap_servers, "mirrored")
        produce(source.bootstrap_servers, "mirrored", [(None, b"%d" % number, 1, ()) for number in range(500)])
        settings = properties(source.bootstrap_servers, target) | {"emit.heartbeats.enabled": "true"}
        with mirror(settings | {"A->B.topics": "mirrored"}) as running:
            running.copy(running.ends())
            running.flows[0].beat()
    (flow,) = (await browser.get("work"))["mirrors"]
    copied = (flow["source"], flow["target"], flow["topics"], flow["records"], flow["lag"], flow["silent"])
    assert copied == ("A", "B", 1, 500, 0, False)
