"""The cost of the controller's decisions in a large cluster: 40 brokers, 50,000 partitions in 500 topics, 3 replicas.

``python -m bench.controller`` prints how long it takes to make each decision, to build the next image, and to encode
and decode the keys for the coordination store. The measurement involves no store and no network.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

from parley.broker.controller.brokers import fence_broker, hand_over_leadership, register_broker
from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import ElectionRules
from parley.broker.controller.elections.preferred_elections import elect_preferred_leaders, rebalance_to_preferred
from parley.broker.controller.elections.requested_elections import ElectionType, needing_election
from parley.broker.controller.isr_changes import IsrChange, alter_partitions
from parley.broker.controller.reassignment import Reassignment, alter_reassignments, list_reassignments
from parley.broker.controller.stored_metadata import read_image, writes_for
from parley.broker.controller.topics import NewTopic, TopicDefaults, create_topics, delete_topics
from parley.broker.metadata.changes import Change
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration, Endpoint
from parley.protocol.uuids import UUID

BROKERS, TOPICS, PARTITIONS, REPLICAS = 40, 500, 100, 3
ALTERED = 1000
ROUNDS = 5


def rules(image: MetadataImage, topic: str) -> ElectionRules:
    """Return the default rules, for every topic."""
    return ElectionRules()


def registration(broker_id: int, epoch: int = 1) -> BrokerRegistration:
    """Return the registration of a broker of the cluster."""
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", f"broker{broker_id}.example.com", 9092)
    return BrokerRegistration(broker_id, epoch, UUID(int=broker_id + epoch), (endpoint,), rack=f"rack{broker_id % 4}")


def cluster(rng: Random) -> MetadataImage:
    """Return the cluster on which the decisions are made."""
    image = MetadataImage("bench", brokers={i: registration(i) for i in range(BROKERS)})
    return image.with_changes(new_topics(image, rng, TOPICS, "topic").changes)


def new_topics(image: MetadataImage, rng: Random, count: int, prefix: str) -> Decision[Any]:
    """Return the decision to create ``count`` topics, which consists of one request for each."""
    changes: list[Change] = []
    for first in range(count):
        wanted = [NewTopic(f"{prefix}{first:04d}", configs={"retention.ms": "86400000"})]
        changes += create_topics(
            image,
            wanted,
            defaults=TopicDefaults(PARTITIONS, REPLICAS),
            new_id=lambda: UUID(int=rng.getrandbits(128), version=4),
            rng=rng,
        ).changes
    return Decision(tuple(changes), None)


def grown_isrs(image: MetadataImage, leader: int, count: int) -> Decision[Any]:
    """Return the decision to remove a follower from the ISR of up to ``count`` partitions of a leader."""
    led = [each for each in image.partitions() if each[2].leader == leader][:count]
    wanted = [
        IsrChange(
            image.topics[topic].topic_id,
            index,
            state.leader_epoch,
            state.partition_epoch,
            tuple((i, 1) for i in state.isr if i != state.isr[-1] or i == leader),
        )
        for topic, index, state in led
    ]
    return alter_partitions(image, leader, 1, wanted, rules)


def decisions(image: MetadataImage, rng: Random) -> dict[str, Callable[[], Decision[Any]]]:
    """Return the decisions to measure, by their names in the output."""
    lost = image.with_changes(fence_broker(image, 7, rules).changes)
    moves = [Reassignment(f"topic{i:04d}", 5, (1, 2, 3)) for i in range(TOPICS)]
    moving = image.with_changes(alter_reassignments(image, moves, rules).changes)
    return {
        "a broker is lost": lambda: fence_broker(image, 7, rules),
        "a broker leaves in good order": lambda: hand_over_leadership(image, 7, 1, rules),
        "a broker comes back": lambda: register_broker(lost, registration(7, 2), None, rules),
        f"the ISR of {ALTERED} partitions changes": lambda: grown_isrs(image, 3, ALTERED),
        "the ISR of one partition changes": lambda: grown_isrs(image, 3, 1),
        f"a topic of {PARTITIONS} partitions is created": lambda: new_topics(image, rng, 1, "new"),
        "a topic is deleted": lambda: delete_topics(image, ["topic0007"], {}),
        "preferred leaders everywhere": lambda: elect_preferred_leaders(
            lost, needing_election(lost, ElectionType.PREFERRED), rules
        ),
        "leaders are balanced (nothing to do)": lambda: rebalance_to_preferred(image, 10, 1000, rules),
        f"{TOPICS} partitions move": lambda: alter_reassignments(image, moves, rules),
        "moves are listed": lambda: Decision((), list_reassignments(moving, None)),
    }


def ms(work: Callable[[], object]) -> float:
    """Return the shortest duration of several runs of ``work``, in milliseconds."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times) * 1000


def main() -> None:
    """Print the table."""
    rng = Random(1)
    image = cluster(rng)
    print(f"{BROKERS} brokers, {TOPICS * PARTITIONS} partitions of {REPLICAS} replicas")
    print(f"{'':<44}{'changes':>9}{'decide ms':>11}{'image ms':>10}{'writes ms':>11}{'keys':>7}{'KiB':>8}")
    for name, decide in decisions(image, rng).items():
        base = image
        changes = decide().changes
        if name.startswith(("a broker comes", "preferred")):
            base = image.with_changes(fence_broker(image, 7, rules).changes)
        after = base.with_changes(changes)
        writes = writes_for(changes, after, base)
        size = sum(len(value or b"") for value in writes.values()) / 1024
        print(
            f"{name:<44}{len(changes):>9}{ms(decide):>11.2f}{ms(lambda: base.with_changes(changes)):>10.2f}"  # noqa: B023
            f"{ms(lambda: writes_for(changes, after, base)):>11.2f}{len(writes):>7}{size:>8.0f}"  # noqa: B023
        )
    everything = image.changes_since(MetadataImage("bench"))
    writes = writes_for(everything, image, MetadataImage("bench"))
    stored = {key: value for key, value in writes.items() if value is not None}
    print(f"{'all of it written':<44}{ms(lambda: writes_for(everything, image, MetadataImage('bench'))):>31.2f}")
    print(f"{'all of it read':<44}{ms(lambda: read_image('bench', stored)):>31.2f}")
    print(f"{'the difference of two images':<44}{ms(lambda: image.changes_since(image)):>31.2f}")


if __name__ == "__main__":
    main()
