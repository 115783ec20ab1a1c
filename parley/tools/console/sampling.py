"""Take samples of a cluster: while the console runs, or while a user who logged in has a session."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from parley.broker.runtime.clock import SYSTEM_CLOCK
from parley.protocol.errors import KafkaError
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.invocation import CommandError
from parley.tools.console.cluster_view import ClusterView
from parley.tools.console.history import PERIOD_S, Sample
from parley.tools.console.sample_file import SampleFile

_log = logging.getLogger(__name__)


async def sample_forever(view: ClusterView, folder: Path | None) -> None:
    """Add a sample to the view's history every ``PERIOD_S``, or less often if the cluster is slow to read. Stores the
    samples in ``folder``, if there is one. Never ends: cancel it."""
    before: tuple[float, dict[TopicPartition, int]] | None = None
    isr: dict[TopicPartition, frozenset[int]] = {}
    while True:
        try:
            begun = SYSTEM_CLOCK.monotonic()
            await view.client.metadata([])
            request_ms = (SYSTEM_CLOCK.monotonic() - begun) * 1000
            if not view.history.begun.is_set():
                await _begin(view, folder)
            metadata = await view.metadata()
            ends = await view.end_offsets()
        except (KafkaError, CommandError) as error:
            _log.info("could not sample the cluster: %s", error)
        else:
            now = SYSTEM_CLOCK.monotonic()
            partitions = [(topic.name or "", one) for topic in metadata.topics for one in topic.partitions]
            new_isr = {(name, one.partition_index): frozenset(one.isr_nodes) for name, one in partitions}
            await view.history.add(
                Sample(
                    at_ms=SYSTEM_CLOCK.wall_ms(),
                    records_per_s=None if before is None else _rate(before, (now, ends)),
                    request_ms=round(request_ms, 2),
                    partitions=len(partitions),
                    under_replicated=sum(len(one.isr_nodes) < len(one.replica_nodes) for _, one in partitions),
                    offline=sum(one.leader_id < 0 for _, one in partitions),
                    isr_changes=sum(isr.get(where, found) != found for where, found in new_isr.items()),
                    brokers=len(metadata.brokers),
                )
            )
            before, isr = (now, ends), new_isr
        await asyncio.sleep(PERIOD_S)


async def _begin(view: ClusterView, folder: Path | None) -> None:
    cluster = (await view.cluster()).cluster_id
    kept = None if folder is None else SampleFile(folder, cluster, view.user)
    await view.history.begin(kept, SYSTEM_CLOCK.wall_ms())


def _rate(before: tuple[float, dict[TopicPartition, int]], after: tuple[float, dict[TopicPartition, int]]) -> float:
    """Return the records per second between two readings of the end offsets."""
    grown = sum(max(end - before[1].get(where, end), 0) for where, end in after[1].items())
    return round(grown / max(after[0] - before[0], 0.001), 1)
