"""The scheduling of TLS handshakes: a few steps at a time, hosts take turns, those of lost clients are dropped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

from parley.broker.network.handshakes import STEPS_AT_ONCE, Done, Handshakes, Work
from parley.broker.runtime.threads import HANDSHAKES
from parley.broker.security.principal import Principal
from tests.broker.network.harness import eventually, serving
from tests.broker.network.test_tls import hello, tls

HOST = "127.0.0.2"


async def test_steps_that_wait_for_a_broker_that_stops_are_dropped() -> None:
    """Its threads have ended when the steps that run come back."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    executor = ThreadPoolExecutor(HANDSHAKES)
    handshakes, go_on = Handshakes(executor), threading.Event()
    finished: list[Done] = []
    dropped: list[Done] = []
    for _ in range(HANDSHAKES):
        handshakes.step(HOST, lambda: _waits(go_on), finished.append, lambda: True)
    for _ in range(2 * STEPS_AT_ONCE):
        handshakes.step(HOST, lambda: None, dropped.append, lambda: not go_on.is_set())
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
            handshakes.step(HOST, lambda: _waits(go_on), lambda _: None, lambda: True)
        for _ in range(3 * STEPS_AT_ONCE):
            handshakes.step(HOST, lambda: None, dropped.append, lambda: False)
        handshakes.step(HOST, lambda: None, finished.append, lambda: True)
        go_on.set()
        await eventually(lambda: len(finished) == 1)
        assert not dropped


async def test_hosts_take_turns() -> None:
    """A host with many stalled handshakes hardly delays the handshake of another host."""
    with ThreadPoolExecutor(HANDSHAKES) as executor:
        handshakes, go_on = _Recorded(executor), threading.Event()
        async with serving({}, security=tls()) as listener, AsyncExitStack() as clients:
            listener._handshakes = handshakes
            for _ in range(HANDSHAKES):
                handshakes.step("127.0.0.1", lambda: _waits(go_on), lambda _: None, lambda: True)
            for host, times in ((HOST, 3 * HANDSHAKES * STEPS_AT_ONCE), ("127.0.0.3", 1)):
                for _ in range(times):
                    address = ("127.0.0.1", listener.port)
                    _, writer = await asyncio.open_connection(*address, local_addr=(host, 0))
                    clients.callback(writer.close)
                    writer.write(hello())
                await handshakes.have_begun(host, times)
            go_on.set()
            await eventually(lambda: "127.0.0.3" in handshakes.ran)
            assert handshakes.ran.index("127.0.0.3") <= HANDSHAKES * STEPS_AT_ONCE


class _Recorded(Handshakes):
    """Records the hosts of steps: of those that were added, and of those that ran."""

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        self.begun: list[str] = []
        self.ran: list[str] = []

    async def have_begun(self, host: str, times: int) -> None:
        await eventually(lambda: self.begun.count(host) == times)

    def step(self, host: str, work: Work, done: Callable[[Done], None], is_wanted: Callable[[], bool]) -> None:
        def recorded() -> Principal | None:
            self.ran.append(host)
            return work()

        self.begun.append(host)
        super().step(host, recorded, done, is_wanted)


def _waits(event: threading.Event) -> None:
    event.wait()
