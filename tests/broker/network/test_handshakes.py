"""The scheduling of TLS handshakes: a few steps at a time, others wait, and handshakes of lost clients are dropped."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from parley.broker.network.handshakes import STEPS_AT_ONCE, Done, Handshakes
from parley.broker.runtime.threads import HANDSHAKES
from tests.broker.network.harness import eventually


async def test_steps_that_wait_for_a_broker_that_stops_are_dropped() -> None:
    """Its threads have ended when the steps that run come back."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    executor = ThreadPoolExecutor(HANDSHAKES)
    handshakes, go_on = Handshakes(executor), threading.Event()
    finished: list[Done] = []
    dropped: list[Done] = []
    for _ in range(HANDSHAKES):
        handshakes.step(lambda: _waits(go_on), finished.append, lambda: True)
    for _ in range(2 * STEPS_AT_ONCE):
        handshakes.step(lambda: None, dropped.append, lambda: not go_on.is_set())
    executor.shutdown(wait=False)
    go_on.set()
    await eventually(lambda: len(finished) == HANDSHAKES)
    await asyncio.sleep(0)  # the loop reports an error of a callback in the same turn
    assert not errors
    assert not dropped


async def test_a_client_that_has_gone_does_not_hold_up_those_behind_it() -> None:
    with ThreadPoolExecutor(HANDSHAKES) as executor:
        handshakes, go_on = Handshakes(executor), threading.Event()
        finished: list[Done] = []
        dropped: list[Done] = []
        for _ in range(HANDSHAKES):
            handshakes.step(lambda: _waits(go_on), lambda _: None, lambda: True)
        for _ in range(3 * STEPS_AT_ONCE):
            handshakes.step(lambda: None, dropped.append, lambda: False)
        handshakes.step(lambda: None, finished.append, lambda: True)
        go_on.set()
        await eventually(lambda: len(finished) == 1)
        assert not dropped


def _waits(event: threading.Event) -> None:
    event.wait()
