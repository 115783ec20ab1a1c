"""Faults of a broker's disk, on clusters of processes (``Hurt``). No acknowledged record may be lost.

Rules:

1. A fault changes the files of one broker, the victim, while the broker is down.
2. The victim is the leader or a follower. Either it is stopped alone while the cluster continues, or all brokers are
   killed, simultaneously or one after another, and the victim starts first.
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
"""Injects a fault into a cluster, mainly into a topic. Returns the number of the affected broker."""

Damage = Callable[[ClusterOfProcesses, str, int], None]
"""Changes the files of this broker, which is down; mainly those of the topic."""


# --- Damage ---


def empty_disk(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """Delete everything."""
    shutil.rmtree(cluster.brokers[victim].data)


def flip_bytes(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """Change bytes in the middle of the oldest non-empty segment."""
    written = [each for each in _segments(cluster.brokers[victim], topic) if each.stat().st_size]
    for path in written[:1]:
        data = bytearray(path.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 8] = bytes(each ^ 0xFF for each in data[middle : middle + 8])
        path.write_bytes(data)


def lose_partition(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """Delete the folder of a partition."""
    for path in _segments(cluster.brokers[victim], topic)[:1]:
        shutil.rmtree(path.parent)


def lose_segment(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """Delete the oldest segment of a partition, but not its indexes."""
    for path in _segments(cluster.brokers[victim], topic)[:1]:
        path.unlink()


def empty_segment(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """Truncate the active segment of a partition to zero bytes."""
    for path in _segments(cluster.brokers[victim], topic)[-1:]:
        path.write_bytes(b"")


def halve_segment(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """Truncate a partition's oldest segment to its first half."""
    for path in _segments(cluster.brokers[victim], topic)[:1]:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)


def exchange_partitions(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """Swap the folders of two replicas of a partition between their brokers' disks."""
    ours, theirs = (
        {path.parent for path in _segments(cluster.brokers[number], topic)} for number in (victim, victim % 3 + 1)
    )
    for mine in sorted(ours)[:1]:
        for its in (each for each in theirs if each.name == mine.name):
            _exchange(mine, its)


def lose_checkpoints(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """Delete the checkpoints of the directory, and the topic's leader epochs. All records remain."""
    data = cluster.brokers[victim].data
    for path in (*data.glob("*-checkpoint"), *data.glob(f"{topic}-*/*leader-epoch*")):
        path.unlink()


def lose_indexes(cluster: ClusterOfProcesses, topic: str, victim: int) -> None:
    """Delete all indexes of the topic."""
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
    """Return the segments of the topic's first partition on this disk that has any, oldest first."""
    found = sorted(broker.data.glob(f"{topic}-*/*.log"))
    return [each for each in found if each.parent == found[0].parent]


def _exchange(one: Path, other: Path) -> None:
    between = one.with_name("exchanged")
    shutil.move(one, between)
    shutil.move(other, one)
    shutil.move(between, other)


# --- How it comes about ---


def all_killed(cluster: ClusterOfProcesses, topic: str, victim: int, damage: Damage) -> None:
    """Kill all brokers simultaneously. The victim starts first."""
    for broker in cluster.brokers.values():
        broker.kill()
    _damaged(cluster, topic, victim, damage)
    cluster.brokers[victim].start()


def killed_one_after_the_other(cluster: ClusterOfProcesses, topic: str, victim: int, damage: Damage) -> None:
    """Kill all brokers one after another, the victim last, so that it is alone in the ISR. The victim starts first."""
    for number, broker in cluster.brokers.items():
        if number != victim:
            broker.kill()
            while any(number in each.isrs for each in cluster.metadata(topic).topics[topic].partitions.values()):
                time.sleep(POLL_S)
    all_killed(cluster, topic, victim, damage)


def stopped_alone(cluster: ClusterOfProcesses, topic: str, victim: int, damage: Damage) -> None:
    """Stop the victim cleanly while the other brokers continue."""
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
    """Choose a kind of damage, a way and a victim at random."""
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
