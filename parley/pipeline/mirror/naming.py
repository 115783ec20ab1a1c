"""The mirrored topics, and their names on the other cluster (KIP-382, KIP-690, KIP-787).

With the default policy, topic ``t`` of cluster ``A`` is ``A.t`` on its target. The name shows where records come
from, and a topic from the target is never sent back to it, over any number of hops. The identity policy keeps names, as
the first MirrorMaker did. Then only the user can prevent clusters from mirroring each other in a circle;
``MirrorSettings`` refuses the identity policy for two flows in opposite directions.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

HEARTBEATS: Final = "heartbeats"
DEFAULT_POLICY: Final = "org.apache.kafka.connect.mirror.DefaultReplicationPolicy"
IDENTITY_POLICY: Final = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
_DOT: Final = "."
_FLAGS: Final = re.compile(r"\(\?([imsx]+)\)")


@dataclass(frozen=True, slots=True)
class ReplicationPolicy:
    """The names of mirrored topics and of internal topics.

    ``identity_of`` is the alias of the source whose topics keep their names; None means the default policy.
    """

    separator: str = _DOT
    internal_separator: str = _DOT
    identity_of: str | None = None

    def remote(self, source: str, topic: str) -> str:
        """Return the target's name for ``topic`` of the cluster ``source``."""
        if self._keeps(topic):
            return topic
        return f"{source}{self.separator}{topic}"

    def source(self, topic: str) -> str | None:
        """Return the cluster from which a topic was mirrored, according to its name; None if it was not mirrored."""
        if self._keeps(topic):
            return self.identity_of
        source, found, upstream = topic.partition(self.separator)
        # As Java's split: what is after the last separator must not be empty.
        return source if found and upstream.strip(self.separator) else None

    def upstream(self, topic: str) -> str | None:
        """Return a mirrored topic's name on the cluster from which it was mirrored; None if it was not mirrored."""
        if self._keeps(topic):
            return topic
        return None if self.source(topic) is None else topic.partition(self.separator)[2]

    def original(self, topic: str) -> str:
        """Return the topic's name on the cluster where it was created, any number of hops away."""
        upstream = self.upstream(topic)
        return topic if upstream is None or upstream == topic else self.original(upstream)

    def is_cycle(self, topic: str, target: str) -> bool:
        """Return True if the name shows that the topic's records come from ``target``."""
        source, upstream = self.source(topic), self.upstream(topic)
        if source is None:
            return False
        if source == target:
            return True
        return upstream is not None and upstream != topic and self.is_cycle(upstream, target)

    def is_heartbeats(self, topic: str) -> bool:
        """Return True if the topic is the heartbeats topic, mirrored or not."""
        return self.original(topic) == HEARTBEATS

    def is_internal(self, topic: str) -> bool:
        """Return True if the topic is internal to Kafka or to a mirror. Internal topics are never mirrored."""
        of_mirrors = topic.startswith("mm2") and topic.endswith((f"{self.internal_separator}internal", ".internal"))
        return of_mirrors or topic.startswith(("__", _DOT)) or topic.endswith(self.checkpoints(""))

    def offset_syncs(self, other: str) -> str:
        """Return the topic of offset syncs. ``other`` is the cluster that does not have the topic."""
        return self._internal("mm2-offset-syncs", other)

    def offsets(self, source: str) -> str:
        """Return the topic on the target that stores the copied offsets of each partition of ``source``."""
        return f"mm2-offsets.{source}.internal"

    def checkpoints(self, source: str) -> str:
        """Return the topic on the target that stores the offsets of the consumer groups of ``source``."""
        return self._internal(source, "checkpoints")

    def _internal(self, *parts: str) -> str:
        return self.internal_separator.join((*parts, "internal"))

    def _keeps(self, topic: str) -> bool:
        return self.identity_of is not None and not topic.endswith(HEARTBEATS)


class BadPattern(ValueError):
    """Raised for an invalid regular expression in a list of names. The message shows the expression."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The choice of names by comma-separated regular expressions, each of which must match a whole name."""

    include: str
    exclude: str = ""
    _include: re.Pattern[str] | None = field(init=False, compare=False)
    _exclude: re.Pattern[str] | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_include", compiled(self.include))
        object.__setattr__(self, "_exclude", compiled(self.exclude))

    def __contains__(self, name: str) -> bool:
        if self._include is None or not self._include.fullmatch(name):
            return False
        return self._exclude is None or not self._exclude.fullmatch(name)


def compiled(patterns: str) -> re.Pattern[str] | None:
    """Join comma-separated expressions into one. Returns None for an empty list, which matches nothing. Raises
    BadPattern.
    """
    parts = [_group(part) for part in re.split(r"\s*,\s*", patterns.strip()) if part]
    return re.compile("|".join(parts)) if parts else None


def _group(part: str) -> str:
    """Wrap an expression in a group, so that it can be joined with others. Flags at its start, such as ``(?i)``, apply
    only to it.

    Raises BadPattern.
    """
    flags = _FLAGS.match(part)
    group = f"(?{flags[1]}:{part[flags.end() :]})" if flags else f"(?:{part})"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # sets within sets, which mean something else in Java
            re.compile(group)
    except (re.error, FutureWarning) as error:
        raise BadPattern(f"{part!r} is not a regular expression: {error}") from None
    return group


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Chooses the topics of a source that are mirrored to ``target``."""

    policy: ReplicationPolicy
    topics: Selection
    target: str
    heartbeats: bool = True

    def of(self, topics: Iterable[str]) -> list[str]:
        """Return the topics that are mirrored, sorted by name."""
        return sorted(filter(self.__contains__, topics))

    def __contains__(self, topic: str) -> bool:
        chosen = topic in self.topics or (self.heartbeats and self.policy.is_heartbeats(topic))
        return chosen and not self.policy.is_internal(topic) and not self.policy.is_cycle(topic, self.target)
