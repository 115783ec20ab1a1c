"""What a broker logs if the controller is gone and no other one can be elected."""

from __future__ import annotations

from typing import Any

import pytest

from parley.broker.membership.controller_follower import ControllerFollower
from parley.consensus.backend import Revision
from parley.consensus.recipes.elections import Leader


def test_that_no_controller_can_be_elected_is_logged_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    nothing: Any = None
    why = ["the coordination store has not responded for 7 s", ""]
    follower = ControllerFollower(
        1,
        b"",
        nothing,
        nothing,
        listener="PLAINTEXT",
        broker_epoch=nothing,
        depose=nothing,
        stale=nothing,
        silence=nothing,
        why_no_election=lambda: why.pop(0),
        heartbeat_s=1.0,
        silence_s=2.0,
        monotonic=lambda: now,
    )
    for leader in (Leader(b"", 1, Revision("1")), Leader(b"", 2, Revision("2"))):
        for second in range(12):
            now = float(second)
            follower._log_deposed(leader, {}, "its process has ended")
    events = ["the controller is dead: electing another one", "no controller can be elected"]
    assert [each.getMessage() for each in caplog.records] == events * 2
    assert [each.reason for each in caplog.records] == [  # type: ignore[attr-defined]
        "its process has ended",
        "the coordination store has not responded for 7 s",
        "its process has ended",
        "no broker has won the election yet",
    ]
