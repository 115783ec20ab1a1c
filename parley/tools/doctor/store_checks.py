"""Checks of the coordination store, as this machine reaches it. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from parley.broker.metadata.terms import contradicts
from parley.tools.doctor.facts import Cluster, Machine
from parley.tools.doctor.findings import Seen, some
from parley.tools.doctor.machine_checks import owners

SLOW_S: Final = 0.5
"""The time in seconds above which a read counts as slow. In the same data center it takes milliseconds."""
AWAY: Final = ("Unavailable", "MaybeApplied", "TimeoutError")
"""The names of the errors that mean that the store does not respond."""


def away(facts: Cluster | Machine) -> Iterator[Seen]:
    """Find a store that does not respond to this machine, or to brokers of the cluster."""
    store = facts.store
    is_away = store is not None and store.kind_of_error in AWAY
    name = f"the coordination store {store.url}" if store is not None else "the coordination store"
    evidence = [store.error] if store is not None and is_away else []
    without = facts.without_store if isinstance(facts, Cluster) else ()
    evidence += [f"broker {each.id}: {each.metrics.store_outage}" for each in without if each.metrics is not None]
    if is_away or without:
        to = f" to broker {some(each.id for each in without)}" if without else ""
        yield Seen(f"{name} does not respond{to}", evidence)


def refuses(facts: Cluster | Machine) -> Iterator[Seen]:
    """Find a store that rejects this account, or denies access to its keys."""
    store = facts.store
    if store is not None and store.kind_of_error == "Unauthorized":
        yield Seen(f"the coordination store {store.url} rejects this broker's account", [store.error])


def unusable(facts: Cluster | Machine) -> Iterator[Seen]:
    """Find a store that is damaged, or whose URL is invalid."""
    store = facts.store
    if store is not None and store.error and store.kind_of_error not in (*AWAY, "Unauthorized", "EmptyStore"):
        yield Seen(f"the coordination store {store.url} cannot be used: {store.error}", [store.kind_of_error])


def empty(machine: Machine) -> Iterator[Seen]:
    """Find an empty store although the log directories contain data."""
    store = machine.store
    paths = [each.path for each in machine.folders if each.cluster_id]
    is_empty = store is not None and (store.kind_of_error == "EmptyStore" or (not store.error and not store.cluster_id))
    if store is not None and is_empty and paths:
        yield Seen(
            f"the coordination store {store.url} is empty, and {some(paths)} hold data of a cluster",
            owners(machine.folders),
        )


def other_store(machine: Machine) -> Iterator[Seen]:
    """Find log directories that belong to the cluster of another store."""
    store = machine.store
    if store is None or store.error or not store.identity:
        return
    for each in machine.folders:
        if each.store_identity and each.store_identity != store.identity:
            yield Seen(
                f"{each.path} belongs to the store {each.store_identity}, and {store.url} is {store.identity}",
                [f"{each.path}/coordination.identity"],
            )


def rolled_back(machine: Machine) -> Iterator[Seen]:
    """Find a store that lacks metadata that the broker has already seen, because it was restored from a backup."""
    store = machine.store
    if store is None or store.error or not machine.folders:
        return
    seen = max(each.seen for each in machine.folders)
    if contradicts(store.terms, seen):
        last = store.terms[-1]
        yield Seen(
            f"the coordination store {store.url} was rolled back to an older state: it lacks changes that this broker "
            "has seen",
            [
                f"the broker has seen version {seen.version} of controller epoch {seen.epoch}",
                f"the store ends with version {last.version} of controller epoch {last.epoch}",
            ],
        )


def slow(facts: Cluster | Machine) -> Iterator[Seen]:
    """Find a store whose reads are slow."""
    store = facts.store
    if store is not None and not store.error and store.read_s >= SLOW_S:
        yield Seen(
            f"the coordination store {store.url} takes {store.read_s:.2f} s for a read",
            [f"opened in {store.open_s:.2f} s", f"the median of several reads; more than {SLOW_S:g} s is slow"],
        )
