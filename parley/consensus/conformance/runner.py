"""Runs checks one after the other, each on a fresh store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import parley.consensus.conformance.checks  # noqa: F401  (declares them)
from parley.consensus.conformance.harness import Harness
from parley.consensus.conformance.lab import CHECKS, Broken, Check, Lab, Measure

_PARTS = ["kv", "txn", "history", "ambiguous", "watch", "session", "client", "election", "group", "store", "model"]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a check. ``error`` is empty if it passed."""

    name: str
    promise: str
    passed: bool
    seconds: float
    measures: tuple[Measure, ...]
    error: str

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return asdict(self)


def all_checks() -> tuple[Check, ...]:
    """Return all checks. A store passes the kit if it passes all of them."""
    return tuple(sorted(CHECKS.values(), key=lambda check: _PARTS.index(check.name.partition("-")[0])))


def run_check(check: Check, harness: Harness) -> tuple[Measure, ...]:
    """Run one check on a fresh store, in a new event loop. Returns its measurements.

    Raises Broken if the store does not have the property, or any other exception if something else failed.
    """
    try:
        if check.run is None:
            assert check.run_alone is not None
            check.run_alone(harness)
            return ()
        return asyncio.run(_in_lab(check, harness))
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        # The exceptions of pytest's skip and xfail do not derive from Exception.
        raise Broken(f"{check.name} must be run, but was ended by {error!r}") from error


async def _in_lab(check: Check, harness: Harness) -> tuple[Measure, ...]:
    assert check.run is not None
    lab = Lab(harness, check.name)
    try:
        await harness.start()
        try:
            await check.run(lab)
        finally:
            await lab.close()
    finally:
        await harness.stop()
    return tuple(lab.measures)


def run(
    harness: Harness, checks: Iterable[Check] | None = None, on_result: Callable[[Result], None] = lambda result: None
) -> Sequence[Result]:
    """Run the checks (default: all), and call ``on_result`` after each. Returns all results, including failures."""
    results: list[Result] = []
    for check in all_checks() if checks is None else checks:
        started = time.monotonic()
        error = ""
        measures: tuple[Measure, ...] = ()
        try:
            measures = run_check(check, harness)
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
        result = Result(check.name, check.promise, not error, time.monotonic() - started, measures, error)
        results.append(result)
        on_result(result)
    return results
