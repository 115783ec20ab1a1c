"""The values of ``share.auto.offset.reset`` are those that Apache Kafka 4.3.1 accepts."""

from __future__ import annotations

import pytest

from parley.broker.config.share_offset_reset import age_ms, is_reset

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("duration", "ms"),
    [
        ("PT1H", HOUR_MS),
        ("pt1h", HOUR_MS),
        ("+PT1H", HOUR_MS),
        ("-PT-1H", HOUR_MS),
        ("P-1DT25H", HOUR_MS),
        ("P1DT2H3M4.5S", 26 * HOUR_MS + 184_500),
        ("PT1.S", 1_000),
        ("PT1,25S", 1_250),
        ("PT0S", 0),
        ("P99999999999D", 99_999_999_999 * 24 * HOUR_MS),
        ("PT9223372036854775807S", 2**63 - 1),
    ],
)
def test_a_duration_is_an_age_in_milliseconds(duration: str, ms: int) -> None:
    assert age_ms(f"by_duration:{duration}") == ms
    assert is_reset(f"by_duration:{duration}")


@pytest.mark.parametrize(
    "duration",
    [
        "",
        "-PT1H",
        "PT-1H",
        "--PT1H",
        "1h",
        "P1Y",
        "PT",
        "P",
        "+",
        "PT.5S",
        "PT9223372036854775808S",
        "P106751991167301D",
    ],
)
def test_a_duration_that_is_malformed_negative_or_too_long_is_refused(duration: str) -> None:
    assert not is_reset(f"by_duration:{duration}")


@pytest.mark.parametrize("text", ["latest", "earliest"])
def test_a_position_has_no_age(text: str) -> None:
    assert is_reset(text)
    assert age_ms(text) is None


@pytest.mark.parametrize("text", ["none", "EARLIEST", "Latest", "by_duration", "BY_DURATION:PT1H"])
def test_other_texts_are_refused(text: str) -> None:
    assert not is_reset(text)
