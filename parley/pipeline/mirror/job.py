"""A mirror as a Spark streaming query. Each micro-batch contains the ends of the sources, and Spark tasks copy up to
them.

The state is in the clusters, not in Spark. A failed query starts again after a pause, and a killed mirror continues on
any machine.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from parley.pipeline.client.fetching import TopicPartition
from parley.pipeline.mirror.copying import Copied, Range, copy
from parley.pipeline.mirror.rounds import Mirror
from parley.pipeline.mirror.settings import MirrorSettings
from parley.pipeline.spark.shipping import Shipped, missing_module

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

AGAIN_S: Final = 10.0
"""How long to wait before restarting a failed query."""
ATTEMPTS: Final = 3
"""How many times in a row the query of a mirror with ``--once`` may fail without progress before the mirror fails."""
_LOOK_S: Final = 0.2

_log = logging.getLogger(__name__)


class MirrorFailed(Exception):
    """Raised if the query fails repeatedly. The message gives the reason."""


def on_spark(session: SparkSession) -> Callable[[list[Range]], list[Copied]]:
    """Return a function that copies ranges in Spark tasks. If there are more ranges than cores, a task
    copies several.
    """
    context = session.sparkContext

    def run(ranges: list[Range]) -> list[Copied]:
        found: list[Copied] = (
            context.parallelize(ranges, min(len(ranges), context.defaultParallelism)).map(Shipped(copy)).collect()
        )
        return found

    return run


def run(
    session: SparkSession,
    settings: MirrorSettings,
    *,
    now_ms: Callable[[], int],
    over: threading.Event,
    on_progress: Callable[[Mirror], None],
    interval_ms: int = 500,
    once: bool = False,
    checkpoint_dir: str | None = None,
) -> Mirror:
    """Mirror until ``over`` is set or, with ``once``, up to the sources' current ends. Returns the mirror, which is
    closed.

    A query runs every ``interval_ms``, and is restarted if it fails. Calls ``on_progress`` before the first and after
    each round of copying. Raises KafkaError if a cluster is unreachable at the start. With ``once``, raises
    MirrorFailed if the query keeps failing.
    """
    from parley.pipeline.mirror.stream import MirrorSource

    session.dataSource.register(MirrorSource)
    with Mirror(settings, on_spark(session), now_ms=now_ms) as mirror, tempfile.TemporaryDirectory() as folder:
        failed, copied = 0, 0
        while not over.is_set():
            trigger: dict[str, Any] = (
                {"availableNow": True} if once else {"processingTime": f"{interval_ms} milliseconds"}
            )
            query = _query(session, mirror, checkpoint_dir or folder, on_progress, trigger)
            problem = _wait(query, over)
            if once and not problem:
                break
            records = sum(flow.records for flow in mirror.flows)
            failed, copied = (failed + 1 if records == copied else 1), records
            if once and failed == ATTEMPTS:
                raise MirrorFailed(problem)
            if problem:
                _log.error("restarting the query in %g s: %s", AGAIN_S, problem)
                over.wait(AGAIN_S)
    return mirror


def _query(
    session: SparkSession,
    mirror: Mirror,
    checkpoint: str,
    on_progress: Callable[[Mirror], None],
    trigger: dict[str, Any],
) -> StreamingQuery:
    from parley.pipeline.mirror.stream import FORMAT, options

    def each(frame: DataFrame, _: int) -> None:
        ends: dict[int, dict[TopicPartition, int]] = {}
        for flow, topic, partition, end in frame.collect():
            ends.setdefault(flow, {})[TopicPartition(topic, partition)] = end
        mirror.copy(ends, lambda: on_progress(mirror))

    flows = tuple(flow.settings for flow in mirror.flows)
    source = session.readStream.format(FORMAT).options(**options(flows)).load()
    writer = source.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint).trigger(**trigger)
    query: StreamingQuery = writer.queryName("parley-mirror").start()
    return query


def _wait(query: StreamingQuery, over: threading.Event) -> str:
    """Wait until the query ends, or stop it when ``over`` is set. Returns the error message, which is empty unless it
    failed.
    """
    try:
        while query.isActive and not over.wait(_LOOK_S):
            pass
        if over.is_set():
            query.stop()
            return ""
        failure = query.exception()
    except Exception:
        if over.is_set():
            return ""  # the signal that ends this process may have reached Spark, too
        raise
    return "" if failure is None else missing_module(failure) or str(failure)
