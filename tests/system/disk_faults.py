"""What may happen to the disk of a broker, on clusters of processes (``Hurt``): nothing acknowledged may be lost.

Rules:

1. A damage changes the files of one broker, the victim, while it does not run.
2. The victim is the leader or a follower. It is stopped alone while the cluster goes on, or all brokers are killed, at
   once or one after the other, and the victim starts first.
3. Afterwards all replicas are in sync again: faults that destroy data happen one at a time.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tests.system.clusters import POLL_S, ClusterOfProcesses
from tests.system.running import BrokerProcess

Hurt = Callable[[ClusterOfProcesses, str], int]
"""Hurts a cluster, above all what it has of the topic; returns the number of the broker that it meant."""

Damage = Callable[[ClusterOfProcesses, str, int], None]
"""Changes the files of the broker of this number, which does not run; above all those of the topic."""


# --- Damage ---


def empty_disk(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """Everything is gone."""
    shutil.rmtree(cluster.brokers[victim].data)


def flip_bytes(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """Bytes in the middle of the oldest segment that has any are altered."""
    written = [each for each in _segments(cluster.brokers[victim], topic) if each.stat().st_size]
    for path in written[:1]:
        data = bytearray(path.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 8] = bytes(each ^ 0xFF for each in data[middle : middle + 8])
        path.write_bytes(data)


def lose_partition(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """The folder of a partition is gone."""
    for path in _segments(cluster.brokers[victim], topic)[:1]:
        shutil.rmtree(path.parent)


def lose_segment(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """The oldest segment of a partition is gone, and its indexes stay."""
    for path in _segments(cluster.brokers[victim], topic)[:1]:
        path.unlink()


def empty_segment(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """The active segment of a partition is cut to nothing."""
    for path in _segments(cluster.brokers[victim], topic)[-1:]:
        path.write_bytes(b"")


def halve_segment(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """The second half of a partition's oldest segment is gone."""
    for path in _segments(cluster.brokers[victim], topic)[:1]:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)


def exchange_partitions(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """Two replicas of a partition have exchanged their folders: each is on the other broker's disk."""
    ours, theirs = (
        {path.parent for path in _segments(cluster.brokers[number], topic)} for number in (victim, victim % 3 + 1)
    )
    for mine in sorted(ours)[:1]:
        for its in (each for each in theirs if each.name == mine.name):
            _exchange(mine, its)


def lose_checkpoints(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """The checkpoints of the directory and the topic's leader epochs are gone; all records are there."""
    data = cluster.brokers[victim].data
    for path in (*data.glob("*-checkpoint"), *data.glob(f"{topic}-*/*leader-epoch*")):
        path.unlink()


def lose_indexes(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """All indexes of the topic are gone."""
    for path in cluster.brokers[victim].data.glob(f"{topic}-*/*index"):
        path.unlink()


DAMAGES: tuple[Damage, ...] = (
    empty_disk,
    flip_bytes,
    lose_partition,
    lose_segment,
    empty_segment,
    halve_segment,
    exchange_partitions,
    lose_checkpoints,
    lose_indexes,
)


def _segments(broker: BrokerProcess, topic: str) -> list[Path]:
    """The segments of the topic's first partition here that has any, the oldest first."""
    found = sorted(broker.data.glob(f"{topic}-*/*.log"))
    return [each for each in found if each.parent == found[0].parent]


def _exchange(one: Path, other: Path) -> None:
    between = one.with_name("exchanged")
    shutil.move(one, between)
    shutil.move(other, one)
    shutil.move(between, other)


# --- How it comes about ---


def all_killed(cluster: ClusterOfProcesses, topic: str, victim: int, damage: Damage) -> None:
    """All brokers are killed at once, and the victim starts first."""
    for broker in cluster.brokers.values():
        broker.kill()
    _damaged(cluster, topic, victim, damage)
    cluster.brokers[victim].start()


def killed_one_after_the_other(cluster: ClusterOfProcesses, topic: str, victim: int, damage: Damage) -> None:
    """The victim is the last one in the ISR when it is killed, and it starts first."""
    for number, broker in cluster.brokers.items():
        if number != victim:
            broker.kill()
            while any(number in each.isrs for each in cluster.metadata(topic).topics[topic].partitions.values()):
                time.sleep(POLL_S)
    all_killed(cluster, topic, victim, damage)


def stopped_alone(cluster: ClusterOfProcesses, topic: str, victim: int, damage: Damage) -> None:
    """The victim is stopped cleanly while the others go on."""
    assert cluster.brokers[victim].stop() == 0
    _damaged(cluster, topic, victim, damage)


WAYS = (all_killed, killed_one_after_the_other, stopped_alone)


def _damaged(cluster: ClusterOfProcesses, topic: str, victim: int, damage: Damage) -> None:
    others = cluster.brokers if damage is exchange_partitions else (victim,)
    for number in others:
        if number != victim:
            cluster.brokers[number].kill()
    damage(cluster, topic, victim)
    for number in others:
        cluster.on_damage(number)


def damaged_disk(rng: random.Random) -> Hurt:
    """Draw a damage, a way and a victim."""
    damage, way = rng.choice(DAMAGES), rng.choice(WAYS)
    hits_follower = rng.random() < 0.5

    def hurt(cluster: ClusterOfProcesses, topic: str) -> int:
        leader = cluster.leader(topic)
        victim = leader % len(cluster.brokers) + 1 if hits_follower else leader
        way(cluster, topic, victim, damage)
        cluster.start_all()
        cluster.wait_until_in_sync()
        return victim

    hurt.__name__ = f"{damage.__name__} of the {'follower' if hits_follower else 'leader'}, {way.__name__}"
    return hurt
