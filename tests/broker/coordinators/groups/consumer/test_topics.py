"""The hash of topics, whose change triggers a new target assignment."""

from __future__ import annotations

from dataclasses import replace

from parley.broker.coordinators.groups.consumer.topics import NO_TOPICS_HASH, metadata_hash
from tests.broker.coordinators.groups.consumer.bench import with_topics


def test_partitions_and_racks_of_existing_topics_are_part_of_the_hash() -> None:
    image = with_topics(a=1, b=1)
    moved = replace(image, brokers={1: replace(image.brokers[1], rack="r2")})
    others = [metadata_hash(image, "a"), metadata_hash(image, "ab"), metadata_hash(moved, "a"),
              metadata_hash(with_topics(a=2), "a"), metadata_hash(image, "c")]  # fmt: skip
    assert len(set(others)) == len(others)
    assert metadata_hash(image, "c") == NO_TOPICS_HASH
    assert metadata_hash(with_topics(a=1), "ac") == metadata_hash(image, "a")
