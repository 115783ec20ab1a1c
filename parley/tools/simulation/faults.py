"""The faults of a run, planned from its seed before the run starts.

A plan is a list of faults, each with its time and duration. It can be printed, and parts of it can be run again.

A machine that crashes loses everything that was not synced. Kafka promises only that the *other* in-sync replicas have
that data, so they must survive. Therefore, unless every append is synced (``flush.messages=1``), a crash waits until
there is no other fault, and the next fault waits until the cluster has removed the machine from its ISRs.

Faults of ``DESTRUCTIVE`` destroy or misplace data on disk, or the metadata in the store. Kafka's guarantees cover the
data of one machine at a time, so the next such fault waits until every replica is complete again. Other faults may
overlap.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from random import Random


class Kind(Enum):
    """The kinds of faults."""

    KILL = "kill"
    """SIGKILL of a broker. It is restarted at the end of the fault."""
    CRASH = "crash"
    """A machine loses power, and everything that was not synced."""
    STOP = "stop"
    """SIGSTOP of a broker, and SIGCONT at the end."""
    SHUT_DOWN = "shut down"
    """SIGTERM of a broker. It is restarted at the end of the fault or after it has exited, whichever is later."""
    ISOLATE = "isolate"
    """Nothing passes between a broker and the other brokers and clients."""
    PART = "part"
    """Nothing passes between two brokers."""
    DEAFEN = "deafen"
    """Nothing passes from one broker to another, but the other direction works."""
    CUT = "cut connections"
    """The connections between two brokers are reset once."""
    LOSE_STORE = "lose store"
    """A broker cannot reach the coordination store: its requests fail, or arrive late."""
    LOSE_RESPONSE = "lose response"
    """A broker gets no response to its next write to the store."""
    SKEW = "skew clock"
    """The wall clock of a machine jumps."""
    LOSE_DISK = "lose disk"
    """A broker is killed, and starts again on an empty disk."""
    OLD_DISK = "old disk"
    """A broker is killed, and starts again from an older copy of its disk."""
    FLIP = "flip bytes"
    """A broker is killed, and some bytes of a segment change before it starts again."""
    LOSE_SEGMENT = "lose segment"
    """A broker is killed, and the file of a segment is missing when it starts again."""
    EMPTY_SEGMENT = "empty segment"
    """A broker is killed, and the file of an active segment is empty when it starts again."""
    LOSE_PARTITION = "lose partition"
    """A broker is killed, and the folder of a partition is missing when it starts again."""
    LOSE_CHECKPOINTS = "lose checkpoints"
    """A broker is shut down, or killed with all others, and all its checkpoints are missing when it starts again."""
    LOSE_INDEXES = "lose indexes"
    """A broker is shut down, or killed with all others, and all its indexes are missing when it starts again."""
    EXCHANGE_DIRECTORIES = "exchange directories"
    """A broker is killed, and its two log directories are swapped before it starts again."""
    EXCHANGE_DISKS = "exchange disks"
    """Two brokers are killed, and their disks are swapped. An operator corrects the broker ids in the directories."""
    MISPLACE_DISKS = "misplace disks"
    """Two brokers are killed and restarted with each other's disks. The disks are put back at the end."""
    RESTORE_STORE = "restore store"
    """All brokers are killed, and the store is restored from an older copy before they start again."""


class Scope(Enum):
    """The brokers that a destructive fault kills."""

    ONE = ""
    """Only the broker or brokers whose disks are damaged. They start again at the end of the fault."""
    ALL = ", all brokers killed"
    """All brokers simultaneously. The broker with the damaged disk starts first, the others at the end of the fault."""
    IN_TURN = ", all brokers killed in turn"
    """All brokers one after another, the broker with the damaged disk last. It starts first, the others at the end."""


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
    Kind.LOSE_RESPONSE: 2,
    Kind.SKEW: 1,
}
DESTRUCTIVE_WEIGHTS = {
    Kind.LOSE_DISK: 2,
    Kind.OLD_DISK: 2,
    Kind.FLIP: 2,
    Kind.LOSE_SEGMENT: 2,
    Kind.EMPTY_SEGMENT: 1,
    Kind.LOSE_PARTITION: 1,
    Kind.LOSE_CHECKPOINTS: 1,
    Kind.LOSE_INDEXES: 1,
    Kind.EXCHANGE_DIRECTORIES: 1,
    Kind.EXCHANGE_DISKS: 1,
    Kind.MISPLACE_DISKS: 1,
    Kind.RESTORE_STORE: 2,
}
"""The kinds that destroy data, with the weights with which they are chosen."""
AFTER_SHUTDOWN = frozenset({Kind.LOSE_CHECKPOINTS, Kind.LOSE_INDEXES})
"""The kinds that damage a disk after an orderly shutdown of its broker, except if all brokers are killed."""
DAMAGE = AFTER_SHUTDOWN | frozenset(
    {
        Kind.LOSE_DISK,
        Kind.OLD_DISK,
        Kind.FLIP,
        Kind.LOSE_SEGMENT,
        Kind.EMPTY_SEGMENT,
        Kind.LOSE_PARTITION,
        Kind.EXCHANGE_DIRECTORIES,
    }
)
"""The kinds that damage the disk of one machine."""
EXCHANGES = frozenset({Kind.EXCHANGE_DISKS, Kind.MISPLACE_DISKS})
"""The kinds that swap the disks of two machines."""
DESTRUCTIVE = frozenset(DESTRUCTIVE_WEIGHTS)
DESTRUCTIVE_RUNS = 0.3
"""The fraction of runs with destructive faults, among the runs whose settings name no kinds."""
_INSTANT = frozenset({Kind.CUT, Kind.LOSE_RESPONSE, Kind.SKEW})


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault. ``at`` is in seconds after the start of the load; ``lasts`` is its duration in seconds."""

    at: float
    kind: Kind
    broker: int
    other: int
    """The second broker, for kinds that involve two."""
    lasts: float
    amount: float
    """SKEW: the seconds by which the clock jumps. LOSE_RESPONSE: positive if the write is applied. LOSE_STORE: positive
    if requests arrive late, otherwise they fail. RESTORE_STORE: the absolute value is the age of the copy in tenths of
    a second. ``DAMAGE`` and ``EXCHANGES``: selects the scope."""

    @property
    def two(self) -> bool:
        """True if the fault involves two brokers."""
        return self.kind in (Kind.PART, Kind.DEAFEN, Kind.CUT, *EXCHANGES)

    @property
    def scope(self) -> Scope:
        """The brokers that a destructive fault kills or shuts down."""
        if self.kind is Kind.RESTORE_STORE:
            return Scope.ALL
        if abs(self.amount) <= 100.0:
            return Scope.IN_TURN
        return Scope.ALL if self.amount > 0 else Scope.ONE

    def __str__(self) -> str:
        between = f" and broker {self.other}" if self.two else ""
        how_long = f" for {self.lasts:.2f} s" if self.lasts else ""
        how_much = f" by {self.amount:.0f} s" if self.kind is Kind.SKEW else ""
        who = "" if self.kind is Kind.RESTORE_STORE else f" broker {self.broker}"
        scope = self.scope.value if self.kind in DESTRUCTIVE else ""
        return f"{self.at:8.2f} s  {self.kind.value}{who}{between}{how_much}{scope}{how_long}"


def plan(rng: Random, brokers: int, seconds: float, kinds_wanted: Collection[Kind] = ()) -> list[Fault]:
    """Plan the faults of a run of this many seconds, in order of time. With ``kinds_wanted``, only these kinds are
    used."""
    faults = []
    at = rng.uniform(0.5, 5.0)
    rate = rng.choice((1.0, 3.0, 8.0))  # average seconds between faults
    all_weights = WEIGHTS | DESTRUCTIVE_WEIGHTS
    weights_by_kind = {kind: all_weights[kind] for kind in kinds_wanted} or _random_weights(rng)
    kinds, weights = zip(*weights_by_kind.items(), strict=True)
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


def destructive_plan(rng: Random, brokers: int, seconds: float) -> list[Fault]:
    """Plan the destructive faults of a run whose settings name no kinds: none in most runs, a few in the others."""
    if brokers < 3 or rng.random() > DESTRUCTIVE_RUNS:
        return []
    planned = plan(rng, brokers, seconds, DESTRUCTIVE_WEIGHTS)
    return rng.sample(planned, min(len(planned), rng.randint(1, 3)))


def _random_weights(rng: Random) -> dict[Kind, int]:
    """Choose weights for a few kinds of faults, or for all. A run with few kinds repeats the same faults, which finds
    more bugs."""
    if rng.random() < 0.4:
        return dict(WEIGHTS)
    chosen = rng.sample(list(WEIGHTS), rng.randint(1, 4))
    return {kind: WEIGHTS[kind] for kind in chosen}
