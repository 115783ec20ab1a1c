"""The timers of coordinators on the event loop of ``parley start``."""

from __future__ import annotations

import asyncio

import uvloop

from parley.broker.coordinators.patient_timer import PatientTimer


def test_a_timer_without_a_delay_fires_on_uvloop_too() -> None:
    async def wait() -> None:
        fired = asyncio.Event()
        timer = PatientTimer(0, fired.set)
        assert timer.at <= asyncio.get_running_loop().time()
        await fired.wait()

    uvloop.run(wait())
