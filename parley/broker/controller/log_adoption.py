"""The decision that turns partitions found on disk into topics when a cluster starts with existing data.

A broker that is given the data directory of a Kafka broker, or of a Parley broker whose store is lost, finds logs of
topics that are not in the cluster's metadata. They are adopted only if the coordination store was empty. Each topic
gets the partitions that are on this broker's disks, this broker as their only replica, and a leader epoch above any
epoch in the log. Logs that do not form a whole topic are left alone. A directory does not contain the topics'
configuration, so adopted topics keep all records until an operator sets their configuration again.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable

from parley.broker.controller.decision import Decision
from parley.broker.metadata.changes import Change, ConfigReplaced, TopicCreated
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import ConfigResource, PartitionState, ResourceType, TopicImage
from parley.light_dataclasses import dataclass
from parley.protocol.uuids import UUID

_log = logging.getLogger(__name__)

KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}


@dataclass(frozen=True, slots=True)
class FoundPartition:
    """A log on disk: its topic and partition, its topic id (None if the directory does not contain it), and the last
    leader epoch in the log (-1 if there is none)."""

    topic: str
    index: int
    topic_id: UUID | None
    leader_epoch: int


def adopt_partitions(
    image: MetadataImage,
    found: Iterable[FoundPartition],
    *,
    broker_id: int,
    new_id: Callable[[], UUID],
    compacted: frozenset[str],
) -> Decision[list[str]]:
    """Create a topic from each complete set of partitions found on disk. Returns the names of these topics.

    Partitions of topics in the image are skipped. If the logs of a topic are incomplete, or have different topic ids,
    they are logged and left alone. Topics in ``compacted`` get ``cleanup.policy=compact``, and all others get unlimited
    retention. ``new_id()`` returns the id for a topic whose logs have none.
    """
    by_topic: dict[str, dict[int, FoundPartition]] = defaultdict(dict)
    for partition in found:
        if partition.topic not in image.topics:
            by_topic[partition.topic][partition.index] = partition
    changes: list[Change] = []
    adopted = []
    for name, partitions in sorted(by_topic.items()):
        ids = {partition.topic_id for partition in partitions.values()}
        if sorted(partitions) != list(range(len(partitions))) or len(ids) > 1:
            _log.warning(
                "not adopting logs on disk: partitions are missing, or belong to different topics",
                extra={"topic": name, "partitions": sorted(partitions)},
            )
            continue
        changes.append(TopicCreated(_topic(name, partitions, ids.pop() or new_id(), broker_id)))
        changes.append(ConfigReplaced(ConfigResource(ResourceType.TOPIC, name), _settings(name in compacted)))
        adopted.append(name)
    return Decision(tuple(changes), adopted)


def _settings(is_compacted: bool) -> dict[str, str]:
    """Return the configuration of an adopted topic: compaction, or unlimited retention."""
    return {"cleanup.policy": "compact"} if is_compacted else dict(KEEP_ALL)


def _topic(name: str, partitions: dict[int, FoundPartition], topic_id: UUID, broker_id: int) -> TopicImage:
    states = tuple(
        PartitionState((broker_id,), (broker_id,), broker_id, leader_epoch=partitions[index].leader_epoch + 1)
        for index in range(len(partitions))
    )
    return TopicImage(name, topic_id, states)
