"""The topic for records that a sink connector skips (KIP-298)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parley.pipeline.client.cluster import Cluster
from parley.pipeline.connect.tasks.conversion import Outgoing
from parley.pipeline.connect.tasks.tolerance import PREFIX, Raw
from parley.pipeline.connect.tasks.topic_writing import TopicWriter, create_topic


class DeadLetterTopic:
    """The topic for records that a sink connector skips. It is created if it is missing. Raises ConnectError if that
    fails.
    """

    def __init__(self, cluster: Cluster, writer: TopicWriter, settings: Mapping[str, Any]) -> None:
        self._topic: str = settings["errors.deadletterqueue.topic.name"]
        self._has_context: bool = settings["errors.deadletterqueue.context.headers.enable"]
        self._writer = writer
        create_topic(cluster, self._topic, 1, settings["errors.deadletterqueue.topic.replication.factor"])

    def send(self, raw: Raw, context: Mapping[str, str]) -> None:
        headers = raw.headers
        if self._has_context:
            headers += tuple((PREFIX + name, text.encode()) for name, text in context.items())
        timestamp = raw.timestamp if raw.timestamp >= 0 else None
        self._writer.write([Outgoing(self._topic, None, timestamp, raw.key, raw.value, headers)])
