"""The ledger of a share group, by itself: which confirmations count."""

from __future__ import annotations

import pytest

from parley.broker.share.acknowledgements import ACCEPT, RELEASE
from parley.tools.simulation.client_invariants import Violations
from parley.tools.simulation.event_history import History
from parley.tools.simulation.share_group_ledger import LOCK_S, Acknowledgement, ShareGroupLedger

RECORD = 0, 7


@pytest.mark.parametrize(("kind", "name"), [(RELEASE, "DeliveredWithinCount"), (ACCEPT, "AcknowledgedOnce")])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_confirmation_counts_only_before_the_lock_ends(kind: int, name: str, is_late: bool) -> None:
    now = 0.0
    history = History(lambda: now)
    violations = Violations(history)
    ledger = ShareGroupLedger(history, violations)
    ledger.acquired("first", [RECORD], 1, sent=now, node=1)
    ledger.acknowledges("first", [Acknowledgement(RECORD, kind)])
    now = LOCK_S if is_late else LOCK_S / 2
    ledger.confirmed("first", [Acknowledgement(RECORD, kind)], sent=now)
    now += 1.0
    ledger.acquired("second", [RECORD], 1, sent=now, node=2)
    assert any(name in event.what for event in history.events) is not is_late


@pytest.mark.parametrize("leads", [True, False])
def test_a_superseded_leader_may_deliver_a_settled_record(leads: bool) -> None:
    history = History(lambda: 1.0)
    ledger = ShareGroupLedger(history, Violations(history), lambda partition, node: leads)
    ledger.acquired("first", [RECORD], 1, sent=1.0, node=1)
    ledger.confirmed("first", [Acknowledgement(RECORD, ACCEPT)], sent=1.0)
    ledger.acquired("second", [RECORD], 1, sent=1.0, node=2)
    assert any("AcknowledgedOnce" in event.what for event in history.events) is leads
