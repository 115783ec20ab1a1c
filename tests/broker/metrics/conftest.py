"""Patient timeouts of the exporter, for tests that are not about its time limits."""

from __future__ import annotations

import pytest

from parley.broker.metrics import exporter

PATIENCE_S = 600.0


@pytest.fixture(autouse=True)
def _patient_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the timeouts, so that a machine that hangs for seconds does not look like a slow client or a stuck event
    loop."""
    for limit in ("READ_TIMEOUT_S", "HEADER_TIMEOUT_S", "CONNECTION_S", "PLACE_TIMEOUT_S", "LOOP_TIMEOUT_S"):
        monkeypatch.setattr(exporter, limit, PATIENCE_S)
    monkeypatch.setattr(exporter._Request, "timeout", PATIENCE_S)
