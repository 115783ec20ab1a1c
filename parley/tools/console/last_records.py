"""Read the last records of a topic to which programs report: heartbeats of mirrors, or the progress of loads."""

from __future__ import annotations

from parley.protocol.records.record import Record
from parley.tools.cli.topic_offsets import EARLIEST, LATEST, list_offsets_of
from parley.tools.console.cluster_view import ClusterView
from parley.tools.console.record_reading import Scan, fetch


async def last_records(view: ClusterView, topic: str, count: int) -> list[Record]:
    """Return the last ``count`` records of the topic's first partition, or fewer if there are not so many or some have
    just been deleted. Returns an empty list if there is no such topic. Raises KafkaError if the user may not read it,
    or if brokers do not respond."""
    if not any(each.name == topic for each in (await view.metadata()).topics):
        return []
    client = view.client
    led = {await client.leader(topic, 0): [(topic, 0)]}
    first, end = [
        (await list_offsets_of(client, led, at))[topic, 0].offset for at in (EARLIEST, LATEST)
    ]  # in this order, so that the end is not below the first offset
    scan = Scan({0: max(first, end - count)}, {0: end})
    found: list[Record] = []
    while scan.at[0] < end:
        before = scan.at[0]
        async for _, piece in fetch(client, topic, dict(scan.at), scan):
            found += piece
            scan.at[0] = piece[-1].offset + 1
        if scan.at[0] == before:
            break
    return found
