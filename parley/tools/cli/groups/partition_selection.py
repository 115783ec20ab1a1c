"""Which partitions an option such as ``--topic events:0,1`` means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from parley.tools.cli.cluster_client import TopicPartition
from parley.tools.cli.invocation import CommandError


@dataclass(frozen=True, slots=True)
class Scope:
    """Topics, each with its partitions, or None for all of them. Without topics it stands for everything."""

    topics: Mapping[str, frozenset[int] | None] = field(default_factory=dict)

    def partitions(self, known: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
        """The partitions meant, of the topics known. Raises :class:`CommandError` for a partition there is not."""
        found = []
        for topic, wanted in self.topics.items():
            there = known.get(topic, ())
            missing = sorted((wanted or frozenset()) - frozenset(there))
            if missing or not there:
                which = f"{topic} has no partition {missing[0]}" if there else f"There is no topic {topic}"
                raise CommandError(f"{which}. `parley topics --describe` shows what there is.")
            found += [(topic, index) for index in sorted(wanted if wanted is not None else there)]
        return found


def parse_scope(texts: Iterable[str]) -> Scope:
    """The values of ``--topic``: a topic, or ``topic:0,1``. Raises :class:`CommandError`."""
    topics: dict[str, frozenset[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        try:
            partitions = frozenset(int(number) for number in numbers.split(",")) if colon else None
        except ValueError as error:
            raise CommandError(f"--topic takes a topic or topic:0,1, not '{text}'.") from error
        before = topics.get(topic)
        topics[topic] = partitions if topic not in topics else _both(before, partitions)
    return Scope(topics)


def _both(one: frozenset[int] | None, other: frozenset[int] | None) -> frozenset[int] | None:
    return None if one is None or other is None else one | other
