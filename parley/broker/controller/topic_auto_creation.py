"""Topics that are created automatically: a client has named them, or the brokers use them.

Any broker may find that a topic is missing. It asks the controller to create the topic, and waits until this broker's
metadata contains the topic, so that the response can name the leaders.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from parley.broker.config import BrokerConfig
from parley.broker.config.keys.log import SEGMENT_BYTES_MIN
from parley.broker.controller.administration import Administration
from parley.broker.controller.topics import NewTopic, TopicOutcome
from parley.broker.logging.growing_interval import GrowingInterval
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.topic_names import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from parley.broker.network.peers import Peers
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse

_log = logging.getLogger(__name__)

SEEN_MAX_S = 1.0
"""How long this broker waits for a created topic to appear in its metadata."""
ELECTED_MAX_S = 1.0
"""How long a creation waits for the election of a controller. The wait delays a Metadata request, which clients
repeat."""


_REPLICATION_KEYS = {
    OFFSETS_TOPIC: "offsets.topic.replication.factor",
    TRANSACTIONS_TOPIC: "transaction.state.log.replication.factor",
    SHARE_STATE_TOPIC: "share.coordinator.state.topic.replication.factor",
}


class TopicAutoCreation:
    """Asks the controller, which may be this broker, to create topics."""

    def __init__(
        self,
        administration: Administration,
        metadata: Metadata,
        peers: Peers,
        config: Callable[[], BrokerConfig],
        until_opened: Callable[[], Awaitable[None]],
    ) -> None:
        """``until_opened()`` waits until this broker has opened the logs of new partitions, for a limited time."""
        self._administration = administration
        self._metadata = metadata
        self._peers = peers
        self._config = config
        self._until_opened = until_opened
        self._failures = {
            name: GrowingInterval(lambda: asyncio.get_running_loop().time()) for name in _REPLICATION_KEYS
        }

    @property
    def automatic(self) -> bool:
        """True if topics that clients name are created automatically (``auto.create.topics.enable``)."""
        return self._config().auto_create_topics_enable

    async def create_for_client(self, topics: list[NewTopic]) -> list[TopicOutcome]:
        """Create topics that a client has named. Internal topics among them get their usual settings.

        Returns one outcome for each topic. If the controller cannot be reached, no error is raised: each outcome
        contains it.
        """
        internal = self._internal_topics()
        try:
            return await self._create([internal.get(topic.name, topic) for topic in topics])
        except KafkaError as error:
            return [TopicOutcome(topic.name, error=error) for topic in topics]

    async def create_internal_topic(self, name: str) -> None:
        """Create an internal topic unless it exists. Raises COORDINATOR_NOT_AVAILABLE if it cannot be created."""
        try:
            (outcome,) = await self._create([self._internal_topics()[name]])
            error = outcome.error
        except KafkaError as failed:
            error = failed
        if error is None or error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            self._failures[name].restart()
            return
        passes = error.code in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
        if not passes and self._failures[name].claim_line():  # clients retry many times a second
            _log.error(
                "cannot create an internal topic: its coordinators are unavailable until it exists; if there are fewer "
                "brokers than the replication factor, set that key to the number of brokers",
                extra={"topic": name, "key": _REPLICATION_KEYS[name], "reason": error.message},
            )
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)

    async def _create(self, topics: Sequence[NewTopic]) -> list[TopicOutcome]:
        def local() -> Awaitable[list[TopicOutcome]] | None:
            return self._administration.create_topics(topics) if self._administration.is_controller else None

        request = CreateTopicsRequest(topics=[_creatable(topic) for topic in topics])
        created = await self._peers.ask_elected_controller(request, local, patience_s=ELECTED_MAX_S)
        return await self._seen(created) if isinstance(created, CreateTopicsResponse) else created

    async def _seen(self, response: CreateTopicsResponse) -> list[TopicOutcome]:
        """Wait until this broker can serve the topics that the controller's response names. Returns their outcomes."""
        created = [topic.name for topic in response.topics if topic.error_code == ErrorCode.NONE]
        await self._metadata.until(lambda image: all(name in image.topics for name in created), SEEN_MAX_S)
        await self._until_opened()
        return [
            TopicOutcome(
                topic.name, self._metadata.image.topics.get(topic.name), _error(topic.error_code, topic.error_message)
            )
            for topic in response.topics
        ]

    def _internal_topics(self) -> dict[str, NewTopic]:
        """Return the topics of the coordinators, with the settings with which they are created."""
        config = self._config()
        offsets = NewTopic(
            OFFSETS_TOPIC,
            partitions=config.offsets_topic_num_partitions,
            replication_factor=config.offsets_topic_replication_factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": _segment_bytes(config.offsets_topic_segment_bytes),
            },
        )
        transactions = NewTopic(
            TRANSACTIONS_TOPIC,
            partitions=config.transaction_state_log_num_partitions,
            replication_factor=config.transaction_state_log_replication_factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(config.transaction_state_log_min_isr),
                "segment.bytes": _segment_bytes(config.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        )
        share_state = NewTopic(
            SHARE_STATE_TOPIC,
            partitions=config.share_coordinator_state_topic_num_partitions,
            replication_factor=config.share_coordinator_state_topic_replication_factor,
            configs={
                "cleanup.policy": "delete",
                "compression.type": "producer",
                "min.insync.replicas": str(config.share_coordinator_state_topic_min_isr),
                "retention.ms": "-1",
                "segment.bytes": _segment_bytes(config.share_coordinator_state_topic_segment_bytes),
            },
        )
        return {topic.name: topic for topic in (offsets, transactions, share_state)}


def _segment_bytes(configured: int) -> str:
    """Return the segment size of an internal topic: the configured size, but at least the minimum for topics.

    As in Kafka, the broker's key for it may be lower.
    """
    return str(max(SEGMENT_BYTES_MIN, configured))


def _creatable(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[],
        configs=_entries(topic.configs.items()),
    )


def _entries(configs: Iterable[tuple[str, str]]) -> list[CreateTopicsRequest.CreatableTopicConfig]:
    return [CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in configs]


def _error(code: int, message: str | None) -> KafkaError | None:
    return None if code == ErrorCode.NONE else KafkaError(ErrorCode(code), message or "")
