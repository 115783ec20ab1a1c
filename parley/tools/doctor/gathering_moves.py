"""Sample the reassignments in progress twice."""

from __future__ import annotations

from collections.abc import Sequence

from parley.protocol.client import Client
from parley.tools.cli.reassign.requests import ongoing
from parley.tools.doctor.facts import Cluster, Move, ReplicaSize


async def moves_of(client: Client, cluster: Cluster, before: Sequence[Move] = ()) -> list[Move]:
    """Return the reassignments in progress, with the sizes of the adding replicas in the cluster's log directories.

    Without ``before``, this is the first sample, in which both sizes of a replica are the same. With the first sample
    as ``before``, only its reassignments that are still in progress are returned, with both sizes.
    """
    earlier = {(each.topic, each.partition): each for each in before}
    leaders = {(each.topic, each.index): each.leader for each in cluster.partitions}
    found = []
    for (topic, index), move in sorted((await ongoing(client)).items()):
        was = earlier.get((topic, index))
        if before and was is None:
            continue
        copied = {}
        for id_ in move.adding:
            size = _size(cluster, id_, topic, index)
            first = was.copied[id_][0] if was is not None and id_ in was.copied else size
            if size is not None and first is not None:
                copied[id_] = (first, size)
        whole = _size(cluster, leaders.get((topic, index), -1), topic, index)
        found.append(Move(topic, index, move.adding, move.removing, copied, whole.size if whole else None))
    return found


def _size(cluster: Cluster, broker: int, topic: str, partition: int) -> ReplicaSize | None:
    known = cluster.broker(broker)
    for directory in (known.directories if known else None) or ():
        if (topic, partition) in directory.replicas:
            return directory.replicas[topic, partition]
    return None
