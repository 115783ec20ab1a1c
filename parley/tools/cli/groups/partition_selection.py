"""The partitions that options such as ``--topic events:0,1`` select."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.invocation import CommandError


@dataclass(frozen=True, slots=True)
class PartitionSelection:
    """Topics, each with its selected partitions (None: all). Without topics, everything is selected."""

    topics: Mapping[str, frozenset[int] | None] = field(default_factory=dict)

    def partitions(self, known: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
        """Return the selected partitions of the named topics, or an empty list if no topic is named. ``known`` contains
        the partitions of each existing topic. Raises ``CommandError`` if a selected topic or partition does not
        exist."""
        found = []
        for topic, wanted in self.topics.items():
            there = known.get(topic, ())
            missing = sorted((wanted or frozenset()) - frozenset(there))
            if missing or not there:
                which = f"{topic} has no partition {missing[0]}" if there else f"Topic {topic} does not exist"
                raise CommandError(f"{which}. `parley topics --describe` shows the existing partitions.")
            found += [(topic, index) for index in sorted(wanted if wanted is not None else there)]
        return found


def parse_selection(texts: Iterable[str]) -> PartitionSelection:
    """Parse the values of ``--topic``: ``topic`` or ``topic:0,1``. Raises ``CommandError`` for any other format."""
    topics: dict[str, frozenset[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        try:
            partitions = frozenset(int(number) for number in numbers.split(",")) if colon else None
        except ValueError as error:
            raise CommandError(f"--topic takes a topic or topic:0,1, not '{text}'.") from error
        before = topics.get(topic)
        topics[topic] = partitions if topic not in topics else _both(before, partitions)
    return PartitionSelection(topics)


def _both(one: frozenset[int] | None, other: frozenset[int] | None) -> frozenset[int] | None:
    return None if one is None or other is None else one | other
