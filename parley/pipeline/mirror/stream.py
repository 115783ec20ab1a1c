"""The Spark stream of a mirror: the end offset of each partition of the sources.

A row contains a flow's number, a topic, a partition and the end offset of its log. Every micro-batch has a row for each
partition, changed or not. The target's log, not Spark, determines where a copy continues (``copying``). Therefore a
query can start with an empty checkpoint at any time.

Every few seconds there is a micro-batch even if nothing has changed, so that stuck ranges are retried.
"""

from __future__ import annotations

import base64
import logging
import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from parley.pipeline.client.cluster import LATEST, Cluster, Connection
from parley.pipeline.client.fetching import Isolation, TopicPartition
from parley.pipeline.mirror import admin
from parley.pipeline.mirror.settings import FlowSettings
from parley.pipeline.spark.shipping import Travels
from parley.protocol.errors import KafkaError

FORMAT: Final = "parley-mirror"
SCHEMA: Final = "flow int, topic string, partition int, end bigint"
RETRY_S: Final = 10
"""How often (s) a micro-batch runs even if nothing has changed."""

_log = logging.getLogger(__name__)

Row = tuple[int, str, int, int]


def options(flows: tuple[FlowSettings, ...]) -> dict[str, str]:
    """Return the options with which ``MirrorSource`` reads these flows."""
    return {"flows": base64.b64encode(pickle.dumps(flows)).decode()}


class MirrorSource(Travels, DataSource):
    """The Spark data source with the name ``FORMAT``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Reader(pickle.loads(base64.b64decode(self.options["flows"])))


@dataclass
class _Rows(InputPartition):
    rows: list[Row]


class _Reader(Travels, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, flows: tuple[FlowSettings, ...]) -> None:
        self._flows = flows
        self._clusters: dict[int, Cluster] = {}
        self._last: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._look({})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._last or self._look(start)

    def _look(self, before: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"tick": int(time.time() / RETRY_S)}
        for number, flow in enumerate(self._flows):
            if flow.choices.enabled:
                try:
                    found[str(number)] = self._ends(number, flow)
                except KafkaError as error:
                    _log.warning("%s: the source does not respond: %s", flow.name, error)
                    found[str(number)] = before.get(str(number), {})
        return found

    def _ends(self, number: int, flow: FlowSettings) -> dict[str, dict[str, int]]:
        cluster = self._clusters.get(number)
        if cluster is None:
            connection = Connection(
                bootstrap=flow.source.bootstrap, client_id=f"mirror-{flow.name}", security=flow.source.security
            )
            cluster = self._clusters[number] = Cluster(connection)
        there = admin.overview(cluster).topics
        places = [TopicPartition(topic, one) for topic in flow.topics.of(there) for one in range(there[topic])]
        ends: dict[str, dict[str, int]] = {}
        isolation = Isolation[flow.choices.isolation.upper()]
        for place, end in cluster.offsets(dict.fromkeys(places, LATEST), isolation).items() if places else ():
            ends.setdefault(place.topic, {})[str(place.partition)] = end
        return ends

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        rows = [
            (int(number), topic, int(partition), offset)
            for number, topics in end.items()
            if number != "tick"
            for topic, partitions in topics.items()
            for partition, offset in partitions.items()
        ]
        return [_Rows(rows)]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        assert isinstance(partition, _Rows)
        yield from partition.rows
