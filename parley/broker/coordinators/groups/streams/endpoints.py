"""The endpoints of a streams group's processes, and the partitions for which each of them serves queries.

The responses to heartbeats contain the endpoints of all members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from parley.broker.coordinators.groups.streams.configuration import Configured
from parley.broker.coordinators.groups.streams.streams_group import StreamsMember
from parley.broker.metadata.image import MetadataImage
from parley.protocol.messages.streams_groups import StreamsGroupHeartbeatResponse

Endpoints = StreamsGroupHeartbeatResponse.EndpointToPartitions


def endpoints_of(members: Iterable[StreamsMember], configured: Configured, image: MetadataImage) -> list[Endpoints]:
    """Return the endpoints of the members that have one, with the partitions of their tasks."""
    return [
        Endpoints(
            user_endpoint=StreamsGroupHeartbeatResponse.Endpoint(host=endpoint[0], port=endpoint[1]),
            active_partitions=_partitions(member.progress.assigned.active, configured, image),
            standby_partitions=_partitions(member.progress.assigned.standby, configured, image),
        )
        for member in members
        if (endpoint := member.details.endpoint) is not None
    ]


def _partitions(
    tasks: Mapping[str, Iterable[int]], configured: Configured, image: MetadataImage
) -> list[StreamsGroupHeartbeatResponse.TopicPartition]:
    """Return the partitions that tasks read. A topic may have fewer partitions than its subtopology has tasks."""
    found = []
    for subtopology_id, indexes in tasks.items():
        known = (configured.subtopologies or {}).get(subtopology_id)
        for name in known.subtopology.inputs() if known is not None else ():
            topic = image.topics.get(name)
            if topic is not None:
                partitions = sorted(index for index in indexes if index < len(topic.partitions))
                found.append(StreamsGroupHeartbeatResponse.TopicPartition(topic=name, partitions=partitions))
    return found
