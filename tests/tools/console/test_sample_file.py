"""The samples of a console, kept in a file across its restarts."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parley import Broker
from parley.tools.console.history import Sample
from parley.tools.console.sample_file import HISTORY_FILE, SampleFile
from parley.tools.console.settings import ConsoleSettings
from tests.tools.console.conftest import Browser, browsing

NOW = 1_700_000_040_000  # the beginning of a minute
MINUTE = 60_000
SAMPLE = Sample(NOW, 10.0, 1.5, 3, 0, 0, 0, 1)


def test_samples_are_there_after_a_restart(tmp_path: Path) -> None:
    file = SampleFile(tmp_path / "new", "cluster", "ann")
    samples = [replace(SAMPLE, at_ms=NOW + 3000 * n, records_per_s=None if n == 0 else 5.0 * n) for n in range(4)]
    for one in samples:
        file.add(one)
    assert SampleFile(tmp_path / "new", "cluster", "ann").last_hour(NOW + MINUTE) == samples
    assert SampleFile(tmp_path / "new", "cluster", "eve").last_hour(NOW + MINUTE) == []
    assert SampleFile(tmp_path / "new", "other", "ann").last_hour(NOW + MINUTE) == []


def test_minutes_are_averages_and_stay_for_a_week(tmp_path: Path) -> None:
    file = SampleFile(tmp_path, "cluster", "")
    for number, (records, replicas) in enumerate([(10.0, 0), (20.0, 4), (30.0, 1)]):
        file.add(
            replace(SAMPLE, at_ms=NOW + 3000 * number, records_per_s=records, under_replicated=replicas, isr_changes=1)
        )
    assert file.minutes(0) == []  # the minute is not over
    file.add(replace(SAMPLE, at_ms=NOW + MINUTE))
    (minute,) = file.minutes(0)
    assert (minute.at_ms, minute.records_per_s, minute.under_replicated, minute.isr_changes) == (NOW, 20.0, 4, 3)
    file.add(replace(SAMPLE, at_ms=NOW + 90 * MINUTE))
    assert [one.at_ms for one in file.last_hour(NOW + 90 * MINUTE)] == [NOW + 90 * MINUTE]
    assert NOW in [one.at_ms for one in file.minutes(0)]
    file.add(replace(SAMPLE, at_ms=NOW + 8 * 24 * 60 * MINUTE))
    assert NOW not in [one.at_ms for one in file.minutes(0)]


def test_of_two_samples_at_the_same_time_one_is_kept(tmp_path: Path) -> None:
    for _ in range(2):
        SampleFile(tmp_path, "cluster", "").add(SAMPLE)
    assert SampleFile(tmp_path, "cluster", "").last_hour(NOW) == [SAMPLE]


def test_a_file_that_cannot_be_used_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / HISTORY_FILE).write_bytes(b"this is not a database" * 100)
    file = SampleFile(tmp_path, "cluster", "")
    with caplog.at_level(logging.WARNING):
        assert file.last_hour(NOW) == []
        file.add(SAMPLE)
    assert len(caplog.records) == 1


async def begun(browser: Browser) -> list[dict[str, Any]]:
    """Wait for the first samples, and return them."""
    async with asyncio.timeout(60):
        while True:
            found: list[dict[str, Any]] = (await browser.get("history"))["samples"]
            if found:
                return found
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_console_begins_with_the_samples_of_the_last_one(
    stored_broker: tuple[Broker, str], tmp_path: Path
) -> None:
    settings = ConsoleSettings(stored_broker[0].bootstrap_servers, data_dir=tmp_path)
    async with browsing(settings) as first:
        samples = await begun(first)
    async with browsing(settings) as second:
        assert (await second.get("history"))["samples"][: len(samples)] == samples
        assert (await second.get("history", range="week"))["samples"] == []
        assert (await second.client.get("/api/history", params={"range": "year"})).status_code == 400
