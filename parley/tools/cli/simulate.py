"""``parley simulate``: test whole clusters with simulated faults under virtual time."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from parley.tools.cli.app import App
from parley.tools.cli.invocation import FAILED

if TYPE_CHECKING:
    from parley.tools.simulation.faults import Kind
    from parley.tools.simulation.scenario import Outcome, Settings

app = App(
    "Run clusters of brokers with clients and a coordination store in one process under virtual time, with failing "
    "networks and disks, and check that every guarantee holds. A seed decides everything: the same seed repeats the "
    "same run. Stops with exit code 1 at the first seed that fails, after showing what happened.",
    examples=[
        ("parley simulate --seeds 100", "a hundred seeds, one after another"),
        ("parley simulate --seed 4711", "repeat one seed, and show what happened if it fails"),
        ("parley simulate --seeds 1000 --jobs 4", "a thousand seeds in four processes"),
        ("parley simulate --seed 4711 --shrink", "reduce the faults to those that cause the failure"),
        ('parley simulate --seeds 100 --faults kill --faults "lose disk"', "only faults of these kinds"),
    ],
)


@app.only_command()
def simulate(
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds to run; 50 by default, 1 with --seed.", min=1)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The first seed; random by default.", min=0)] = None,
    minutes: Annotated[float, typer.Option(help="Minutes of virtual time under load and faults.", min=0.01)] = 0.5,
    brokers: Annotated[int, typer.Option(help="Brokers in the cluster.", min=1, max=9)] = 3,
    partitions: Annotated[int, typer.Option(help="Partitions of the topic.", min=1, max=50)] = 2,
    jobs: Annotated[int, typer.Option(help="Number of seeds to run in parallel, each in its own process.", min=1)] = 1,
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Remove faults that the failure does not depend on.")
    ] = False,
    events: Annotated[int, typer.Option(help="Number of events to show before the failure.", min=0)] = 60,
    faults: Annotated[
        list[str] | None,
        typer.Option(help="A kind of fault, such as kill; may be repeated. By default the seed chooses the kinds."),
    ] = None,
    streams_groups: Annotated[
        bool, typer.Option("--streams-groups", help="Let a streams group read the topic, too.")
    ] = False,
) -> None:
    from parley.tools.simulation.scenario import Settings

    settings = Settings(
        brokers=brokers,
        partitions=partitions,
        seconds=minutes * 60,
        kinds=tuple(map(_kind, faults or ())),
        streams_groups=streams_groups,
    )
    first = seed if seed is not None else int.from_bytes(os.urandom(3), "big")
    wanted = seeds if seeds is not None else (50 if seed is None else 1)
    began, done = time.monotonic(), 0
    for outcome in _outcomes(range(first, first + wanted), settings, jobs):
        done += 1
        if not outcome.passed:
            _erase_progress()
            _show_failure(outcome, settings, shrink=shrink, events=events)
            raise typer.Exit(FAILED)
        if wanted == 1:
            _show_digest(outcome)
        else:
            _show_progress(done, wanted, outcome)
    _erase_progress()
    print(f"{done} seeds from {first} on passed, in {time.monotonic() - began:.0f} s.")


def _kind(name: str) -> Kind:
    from parley.tools.simulation.faults import Kind

    try:
        return Kind(name)
    except ValueError:
        known = ", ".join(kind.value for kind in Kind)
        raise typer.BadParameter(f"{name!r} is not a kind of fault. The kinds are: {known}.") from None


def _outcomes(seeds: range, settings: Settings, jobs: int) -> Iterator[Outcome]:
    from parley.tools.simulation.scenario import simulate as run

    if jobs == 1:
        yield from map(partial(run, settings=settings), seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        try:
            yield from pool.map(partial(run, settings=settings), seeds)
        except BaseException:  # a seed has failed: its report does not wait for the others
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _show_progress(done: int, wanted: int, outcome: Outcome) -> None:
    if sys.stderr.isatty():
        text = f"{done}/{wanted}  seed {outcome.seed}: {len(outcome.faults)} faults, "
        text += f"{outcome.records_acknowledged} records acknowledged"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _erase_progress() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _show_digest(outcome: Outcome) -> None:
    print(
        f"seed {outcome.seed}: {outcome.virtual_seconds:.0f} s of virtual time, {len(outcome.faults)} faults, "
        f"{outcome.records_acknowledged} records acknowledged, "
        f"{outcome.transactions_committed} transactions committed, "
        f"{outcome.generations} generations and {outcome.epochs + outcome.streams_epochs} epochs of groups, "
        f"{outcome.deliveries} deliveries to a share group, "
        f"{outcome.steps} steps, digest {outcome.digest}"
    )


def _show_failure(outcome: Outcome, settings: Settings, *, shrink: bool, events: int) -> None:
    if shrink:
        from parley.tools.simulation.shrinking import shrink as smaller

        outcome = smaller(outcome, settings, _show_shrinking)
        _erase_progress()
    print(f"Seed {outcome.seed} failed.\n")
    for violation in outcome.violations[:5]:
        print(f"  {violation}")
    if len(outcome.violations) > 5:
        print(f"  and {len(outcome.violations) - 5} more")
    synced = "every append is synced" if outcome.flushes else "appends are not synced"
    print(f"\nFaults, in seconds since the start of the load ({synced}):\n")
    for fault in outcome.faults:
        print(f"  {fault}")
    print("\nEvents, in seconds of virtual time (which starts at 1000):\n")
    for event in outcome.around_failure(before=events):
        print(f"  {event}")
    options = (
        ""
        if replace(settings, kinds=(), streams_groups=False) == type(settings)()
        else (f" --minutes {settings.seconds / 60:g} --brokers {settings.brokers} --partitions {settings.partitions}")
    )
    options += "".join(f" --faults {shlex.quote(kind.value)}" for kind in settings.kinds)
    options += " --streams-groups" if settings.streams_groups else ""
    print(f"\nTo repeat: parley simulate --seed {outcome.seed}{options}")


def _show_shrinking(left: int) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[Kshrinking: {left} faults", end="", file=sys.stderr, flush=True)
