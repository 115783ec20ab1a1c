"""The health of a broker: its states, and the problems that it reports."""

from __future__ import annotations

import pytest

from parley.broker.metrics.health import Health
from parley.broker.runtime.states import IllegalStep


def test_a_broker_serves_between_its_start_and_its_stop() -> None:
    health = Health()
    health.starting("reading logs")
    assert health.report() == (False, {"status": "starting", "detail": "reading logs"})
    health.ready()
    assert health.report() == (True, {"status": "ready"})
    health.stopping()
    assert health.report() == (False, {"status": "stopping"})


def test_an_illegal_step_raises() -> None:
    health = Health()
    health.ready()
    with pytest.raises(IllegalStep, match="STARTING is not legal in the state READY"):
        health.starting("again")
    health.stopping()
    with pytest.raises(IllegalStep, match="READY is not legal in the state STOPPING"):
        health.ready()


def test_only_a_fatal_problem_turns_clients_away() -> None:
    health = Health()
    health.ready()
    health.trouble("directory /a", "I/O error")
    assert health.report() == (True, {"status": "degraded", "problems": {"directory /a": "I/O error"}})
    health.trouble("coordination", "out of reach", fatal=True)
    fine, body = health.report()
    assert not fine
    assert body["problems"]["coordination"] == "out of reach"
    health.solved("coordination")
    health.solved("coordination")
    assert health.report()[0]


def test_a_check_is_made_for_each_report() -> None:
    health, outage = Health(), ""
    health.check("coordination store", lambda: outage)
    health.ready()
    assert health.report() == (True, {"status": "ready"})
    outage = "has not responded for 80 s"
    assert health.report() == (True, {"status": "degraded", "problems": {"coordination store": outage}})
