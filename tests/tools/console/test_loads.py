"""Loads in the console, as their progress records show them."""

from __future__ import annotations

from typing import Any

import pytest

from parley import Broker
from parley.pipeline.client.cluster import Connection
from parley.pipeline.load.progress_topic import DONE, EXPORT, LoadProgress
from parley.pipeline.load.reporting import LoadReport
from parley.protocol.records.record import Record
from parley.tools.console.loads_api import shown
from tests.tools.console.conftest import Browser

NOW = 1_700_000_000_000


def told(before_ms: int, done: int, wanted: int | None = 1000, load: str = "a", **more: Any) -> Record:
    progress = LoadProgress(
        id=load, topic="orders", place="/data", direction=EXPORT, begun_ms=NOW - 60_000, at_ms=NOW - before_ms,
        wanted=wanted, done=done, **more,
    )  # fmt: skip
    encoded = progress.encode()
    return Record(0, -1, encoded.key, encoded.value)


def test_rate_and_time_left() -> None:
    (load,) = shown([told(50_000, 0), told(20_000, 100), Record(0, -1, b"x", b"y"), told(0, 500)], NOW)
    assert (load["rate"], load["remainingMs"], load["state"]) == (20, 25_000, "running")
    assert (load["done"], load["wanted"], load["elapsedMs"]) == (500, 1000, 60_000)


@pytest.mark.parametrize("records", [[told(0, 0)], [told(4000, 5), told(0, 5)], [told(4000, 5), told(0, 9, None)]])
def test_without_a_rate_or_an_end_the_time_left_is_unknown(records: list[Record]) -> None:
    (load,) = shown(records, NOW)
    assert load["remainingMs"] is None


def test_a_load_that_was_killed_is_silent() -> None:
    (load,) = shown([told(40_000, 0), told(30_000, 10)], NOW)
    assert (load["state"], load["rate"], load["ageMs"]) == ("silent", None, 30_000)


def test_loads_that_ended_are_shown_for_some_minutes() -> None:
    old, recent = told(700_000, 9, load="old", state=DONE), told(300_000, 9, load="recent", state=DONE)
    assert [(load["id"], load["state"]) for load in shown([old, recent], NOW)] == [("recent", DONE)]


@pytest.mark.slow
async def test_a_load_is_shown(stored_broker: tuple[Broker, str], browser: Browser) -> None:
    connection = Connection(bootstrap=stored_broker[0].bootstrap_servers)
    with LoadReport(connection, "orders", "/data/orders", EXPORT) as report:
        report.show(5, 5)
    (load,) = (await browser.get("work"))["loads"]
    assert (load["topic"], load["place"], load["done"], load["state"]) == ("orders", "/data/orders", 5, DONE)
