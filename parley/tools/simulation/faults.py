"""What goes wrong in a run, planned from its seed before the run begins.

A plan is a list of :class:`Fault`, each with its moment and how long it lasts, so that it can be shown to people, and
so that a part of it can be run again.

A machine crash takes what was not synced, and Kafka's promise is that the *other* in-sync replicas have it. So unless
every append is synced (``flush.messages=1``), a crash waits until nothing else is wrong, and nothing else goes wrong
until the cluster has taken the machine out of its ISRs. Everything else may overlap.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from random import Random


class Kind(Enum):
    """What can go wrong."""

    KILL = "kill"
    """SIGKILL of a broker, which is started again at the end."""
    CRASH = "crash"
    """A machine loses power, and what was not synced."""
    STOP = "stop"
    """SIGSTOP of a broker, SIGCONT at the end."""
    SHUT_DOWN = "shut down"
    """SIGTERM of a broker, which is started again at the end, or as soon as it has ended."""
    ISOLATE = "isolate"
    """Nothing passes between a broker and the other brokers and clients."""
    PART = "part"
    """Nothing passes between two brokers."""
    DEAFEN = "deafen"
    """Nothing reaches one broker from another; the way back is open."""
    CUT = "cut connections"
    """The connections between two brokers are reset once."""
    LOSE_STORE = "lose store"
    """A broker cannot reach the coordination store: what it asks fails, or arrives when it can be reached again."""
    LOSE_ANSWER = "lose answer"
    """A broker does not hear whether its next write to the store was made."""
    SKEW = "skew clock"
    """The wall clock of a machine jumps."""


WEIGHTS = {
    Kind.KILL: 5,
    Kind.CRASH: 3,
    Kind.STOP: 4,
    Kind.SHUT_DOWN: 2,
    Kind.ISOLATE: 4,
    Kind.PART: 3,
    Kind.DEAFEN: 2,
    Kind.CUT: 2,
    Kind.LOSE_STORE: 3,
    Kind.LOSE_ANSWER: 2,
    Kind.SKEW: 1,
}
_INSTANT = frozenset({Kind.CUT, Kind.LOSE_ANSWER, Kind.SKEW})


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong: ``at`` and ``lasts`` in seconds from the beginning of the load."""

    at: float
    kind: Kind
    broker: int
    other: int
    """The second broker, where there is one."""
    lasts: float
    amount: float
    """Seconds by which a clock jumps; of a lost answer, whether the write was made (above 0); of a lost store, whether
    what is asked of it comes late (above 0) or fails."""

    def __str__(self) -> str:
        between = f" and broker {self.other}" if self.kind in (Kind.PART, Kind.DEAFEN, Kind.CUT) else ""
        how_long = f" for {self.lasts:.2f} s" if self.lasts else ""
        how_much = f" by {self.amount:.0f} s" if self.kind is Kind.SKEW else ""
        return f"{self.at:8.2f} s  {self.kind.value} broker {self.broker}{between}{how_much}{how_long}"


def plan(rng: Random, brokers: int, seconds: float, kinds_wanted: Collection[Kind] = ()) -> list[Fault]:
    """The faults of a run of so many seconds, in order of their moments; of the kinds wanted, if any are named."""
    faults = []
    at = rng.uniform(0.5, 5.0)
    rate = rng.choice((1.0, 3.0, 8.0))  # seconds between faults, on average
    mood = {kind: WEIGHTS[kind] for kind in kinds_wanted} or _mood(rng)
    kinds, weights = zip(*mood.items(), strict=True)
    while at < seconds - 2.0:
        kind = rng.choices(kinds, weights)[0]
        broker, other = rng.sample(range(1, brokers + 1), 2) if brokers > 1 else (1, 1)
        lasts = (
            0.0
            if kind in _INSTANT
            else rng.choice((rng.uniform(0.01, 1.0), rng.uniform(1.0, 5.0), rng.uniform(5.0, 15.0)))
        )
        amount = rng.uniform(-300.0, 300.0)
        faults.append(Fault(at, kind, broker, other, min(lasts, seconds - at), amount))
        at += rng.expovariate(1.0 / rate)
    return faults


def _mood(rng: Random) -> dict[Kind, int]:
    """A run has a few kinds of faults, or all of them: few find what needs the same one again and again."""
    if rng.random() < 0.4:
        return dict(WEIGHTS)
    chosen = rng.sample(list(WEIGHTS), rng.randint(1, 4))
    return {kind: WEIGHTS[kind] for kind in chosen}
