"""Patient timeouts of the exporter, for tests that are not about its time limits."""

from __future__ import annotations

import pytest

from parley.broker.metrics import exporter, http_server

PATIENCE_S = 600.0


@pytest.fixture(autouse=True)
def _patient_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the timeouts, so that a machine that hangs for seconds does not look like a slow client or a stuck event
    loop."""
    monkeypatch.setattr(exporter, "LOOP_TIMEOUT_S", PATIENCE_S)
    for limit in ("HEADER_TIMEOUT_S", "CONNECTION_S"):
        monkeypatch.setattr(http_server, limit, PATIENCE_S)
