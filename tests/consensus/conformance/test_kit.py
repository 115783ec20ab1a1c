"""The kit itself: it runs every check, reports failures, injects real faults, and imports only ``parley.consensus``."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from parley.consensus.conformance import Harness
from parley.consensus.conformance.__main__ import find_harness, main
from parley.consensus.conformance.harness import Peer
from parley.consensus.conformance.lab import CHECKS, Broken, Check, Lab, refused, require
from parley.consensus.conformance.runner import all_checks, run, run_check
from parley.consensus.conformance.stores.local import LocalHarness
from parley.consensus.conformance.stores.memory import MemoryHarness
from parley.consensus.errors import Closed, Unavailable
from parley.consensus.memory import MemoryBackend, MemoryStore


def test_every_check_has_a_name_a_promise_and_a_place() -> None:
    checks = all_checks()
    assert len(checks) == len(CHECKS) >= 49
    assert [check.name for check in checks][:2] == ["kv-exact", "kv-expectations"]
    assert all(check.promise.endswith(".") and len(check.promise) > 30 for check in checks)


def test_a_check_that_is_skipped_has_failed() -> None:
    async def skip(lab: Lab) -> None:
        pytest.skip("our server cannot")

    with pytest.raises(Broken, match="must be run"):
        run_check(Check("kv-skipped", "", False, run=skip), MemoryHarness())


def test_a_harness_that_cannot_make_a_fault_fails() -> None:
    class Unable(MemoryHarness):
        async def wipe(self) -> None:
            pytest.skip("no way to wipe it")

    with pytest.raises(Broken):
        run_check(CHECKS["store-wiped-is-refused"], Unable())

    class Idle(MemoryHarness):
        patience = 0.01

        async def move_wall_clock(self, seconds: float) -> None:
            pass

    with pytest.raises(Broken, match="wall clock"):
        run_check(CHECKS["store-wall-clock"], Idle())


class BurstOfThreads(MemoryBackend):
    """A client that uses the loop's executor; from the tenth client on, it uses all threads at the same time, as under
    load."""

    opened = 0

    async def open(self, *, expect_identity: str | None = None) -> None:
        BurstOfThreads.opened += 1
        count = 1 if BurstOfThreads.opened < 10 else 32
        await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.005) for _ in range(count)))
        await super().open(expect_identity=expect_identity)


class LeakyBackend(MemoryBackend):
    """A client that leaks a thread until the test ends all of them."""

    ended = threading.Event()

    async def open(self, *, expect_identity: str | None = None) -> None:
        threading.Thread(target=LeakyBackend.ended.wait, daemon=True).start()
        await super().open(expect_identity=expect_identity)


@pytest.mark.slow
def test_threads_of_the_executor_are_not_taken_for_those_of_clients() -> None:
    class Harness(MemoryHarness):
        def new_client(self, store: MemoryStore) -> MemoryBackend:
            return BurstOfThreads(store)

    run_check(CHECKS["client-leaks-nothing"], Harness())


def test_threads_that_clients_leave_behind_are_found() -> None:
    class Harness(MemoryHarness):
        patience = 0.05

        def new_client(self, store: MemoryStore) -> MemoryBackend:
            return LeakyBackend(store)

    try:
        with pytest.raises(Broken, match=r"40 clients left 4\d threads behind"):  # including some of the executor's
            run_check(CHECKS["client-leaks-nothing"], Harness())
    finally:
        LeakyBackend.ended.set()


def test_results_contain_measurements_and_errors() -> None:
    async def measure(lab: Lab) -> None:
        lab.measured("width", 1, "m")
        lab.measured("width", 3, "m", 5)
        lab.measured("width", 2, "m", 5)

    async def fail(lab: Lab) -> None:
        require(False, "too narrow")

    heard: list[str] = []
    checks = [Check("kv-a", "A.", False, run=measure), Check("kv-b", "B.", False, run=fail)]
    good, bad = run(MemoryHarness(), checks, lambda result: heard.append(result.name))
    assert heard == ["kv-a", "kv-b"]
    assert (good.passed, [str(each) for each in good.measures]) == (True, ["width 3 m (declared: 5)"])
    assert (bad.passed, bad.error) == (False, "Broken: too narrow")
    assert json.loads(json.dumps(good.as_json()))["measures"][0]["value"] == 3


def test_the_store_is_removed_when_a_check_fails() -> None:
    harness = LocalHarness()

    async def fail(lab: Lab) -> None:
        await lab.client()
        await lab.peer("hold", key="a", ttl_ms=1000)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        run_check(Check("kv-c", "", False, run=fail), harness)
    with pytest.raises(AssertionError):
        _ = harness.directory


async def test_a_failed_expectation_shows_the_outcome() -> None:
    async with refused(Closed, "x"):
        await _raise(Closed())
    with pytest.raises(Broken, match="it succeeded"):
        async with refused(Closed, "x"):
            pass
    with pytest.raises(Broken, match="got Unavailable"):
        async with refused((Closed, KeyError), "x"):
            await _raise(Unavailable())


async def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("harness", [MemoryHarness, LocalHarness])
async def test_peers_stand_still_go_on_and_end(harness: type[Harness]) -> None:
    made = harness()
    await made.start()
    try:
        peer = await made.peer("tell_time", {})
        await peer.said()
        await peer.stop()
        heard = await _everything_said(peer)
        await peer.resume()
        for seconds in (3600.0, -3600.0):
            await made.move_wall_clock(seconds)
            async with asyncio.timeout(60):
                while abs((await peer.said())[1] - (_began + time.monotonic()) - seconds) > 60:
                    heard += 1
        await made.move_wall_clock(0)
        await peer.kill()
        with pytest.raises(EOFError):
            await _until_it_ends(peer)
        await peer.kill()
    finally:
        await made.stop()


_began = time.time() - time.monotonic()


async def _until_it_ends(peer: Peer) -> None:
    while True:
        await peer.said()


async def _everything_said(peer: Peer) -> int:
    """Read the messages that the peer sent before it was stopped, until none has arrived for much longer than its
    pauses."""
    heard = 0
    waiting = asyncio.ensure_future(peer.said())
    while (await asyncio.wait([waiting], timeout=0.3))[0]:
        heard += 1
        waiting = asyncio.ensure_future(peer.said())
    waiting.cancel()
    await asyncio.wait([waiting])
    return heard


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert main(["memory:", "--check", "kv-exact", "--check", "session-ttl", "--json", str(report)]) == 0
    printed = capsys.readouterr().out
    assert "kv-exact" in printed
    assert "2 passed, 0 failed" in printed
    written = json.loads(report.read_text())
    assert written["store"] == "memory:"
    assert [check["passed"] for check in written["checks"]] == [True, True]
    broken = "tests.consensus.conformance.mutants:ListingIsUnsorted"
    assert main([broken, "--check", "kv-order"]) == 1
    assert "FAILED" in capsys.readouterr().out
    for wrong in (["redis:"], ["memory:", "--check", "none"], ["json:JSONDecoder"], ["no_such_module:X"]):
        with pytest.raises(SystemExit) as exit_:
            main(wrong)
        assert exit_.value.code == 2
    assert find_harness("local:") is LocalHarness


@pytest.mark.slow
def test_it_needs_nothing_of_ours_but_the_interface() -> None:
    program = (
        "import sys, parley.consensus.conformance.runner, parley.consensus.conformance.suite\n"
        "import parley.consensus.conformance.__main__\n"
        "above = ('parley.broker', 'parley.protocol', 'parley.storage', 'parley.tools')\n"
        "print([name for name in sys.modules if name.startswith(above)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
