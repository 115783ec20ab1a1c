"""CreateTopics, DeleteTopics, CreatePartitions.

The controller handles these requests. Any other broker forwards them to the controller (``forwarding``). Each topic's
change succeeds or fails independently. A client that changes more partitions than its quota allows is throttled
(KIP-599); the controller counts the partitions. ``timeout_ms`` is not needed: when the response is sent, the change is
durable and this broker has applied it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parley.broker.api.requested_names import in_slices, more_than_once, named_twice
from parley.broker.config import BrokerConfig
from parley.broker.config.describe import describe_topic
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.controller.administration import Administration
from parley.broker.controller.configs import check_number_of_entries
from parley.broker.controller.topics import NewPartitions, NewTopic, TopicOutcome
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.types import TopicImage
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.quotas.mutations import UNLIMITED, QuotaOf
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from parley.protocol.schema import ZERO_UUID
from parley.protocol.uuids import UUID

CREATED_PER_SLICE = 50
"""The number of new topics described before the event loop serves other requests. Each has dozens of configuration
entries."""

CREATE_STRICT_SINCE = 6
"""The first version of CreateTopics whose clients understand THROTTLING_QUOTA_EXCEEDED."""
DELETE_STRICT_SINCE = 5
ADD_STRICT_SINCE = 3


class TopicsApi:
    """Handlers of requests that create, change and delete topics."""

    def __init__(
        self,
        administration: Administration,
        metadata: Metadata,
        config: DynamicConfig,
        quota_of: QuotaOf = lambda context, strict_since: UNLIMITED,
    ) -> None:
        """``quota_of(context, strict_since)`` returns the quota for the changes of one request. Requests of versions
        before ``strict_since`` may exceed it, and are throttled afterwards."""
        self._administration = administration
        self._metadata = metadata
        self._config = config
        self._quota_of = quota_of

    def routes(self) -> dict[int, Handler]:
        return {
            CreateTopicsRequest.API_KEY: self.create_topics,
            DeleteTopicsRequest.API_KEY: self.delete_topics,
            CreatePartitionsRequest.API_KEY: self.create_partitions,
        }

    async def create_topics(self, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        """Create topics or, with ``validate_only``, check whether they could be created."""
        quota = self._quota_of(context, CREATE_STRICT_SINCE)
        twice = named_twice(topic.name for topic in request.topics)
        wanted, outcomes = [], []
        for topic in request.topics:
            if topic.name in twice:
                continue
            try:
                wanted.append(_new_topic(topic))
            except KafkaError as error:
                outcomes.append(TopicOutcome(topic.name, error=error))
        try:
            outcomes += await self._administration.create_topics(
                wanted, charge=quota.charge, validate_only=request.validate_only
            )
        except KafkaError as error:
            outcomes += [TopicOutcome(new.name, error=error) for new in wanted]
        outcomes += [TopicOutcome(name, error=more_than_once("topic")) for name in twice]
        described = self._describer({new.name: new.configs for new in wanted})
        return CreateTopicsResponse(
            throttle_time_ms=quota.throttle_ms(), topics=await in_slices(described, outcomes, CREATED_PER_SLICE)
        )

    def _describer(
        self, configs: Mapping[str, Mapping[str, str]]
    ) -> Callable[[TopicOutcome], CreateTopicsResponse.CreatableTopicResult]:
        """Return a function that describes outcomes. ``configs`` contains the requested configuration of each topic.

        Topics with equal configurations share the description of the configuration, which is the largest part of a
        result. Most configurations are equal.
        """
        config = self._config()
        known: dict[frozenset[tuple[str, str]], list[CreateTopicsResponse.CreatableTopicConfigs]] = {}

        def described(outcome: TopicOutcome) -> CreateTopicsResponse.CreatableTopicResult:
            if outcome.topic is None:
                code, text = _error(outcome)
                return CreateTopicsResponse.CreatableTopicResult(name=outcome.name, error_code=code, error_message=text)
            given = configs.get(outcome.name, {})
            key = frozenset(given.items())
            if key not in known:
                known[key] = _configs(config, given)
            return _created(outcome.topic, known[key])

        return described

    async def delete_topics(self, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        """Delete topics by name or, from version 6 on, by id."""
        quota = self._quota_of(context, DELETE_STRICT_SINCE)
        requested = [(topic.name, topic.topic_id) for topic in request.topics] or [
            (name, ZERO_UUID) for name in request.topic_names
        ]
        twice = named_twice(name or str(topic_id) for name, topic_id in requested)
        responses, names = [], []
        # The ids of topics named by id: when the controller decides, a name may belong to another topic.
        ids: dict[str, UUID] = {}

        def look_up(each: tuple[str | None, UUID]) -> None:
            name, topic_id = each
            try:
                names.append(self._name_to_delete(name, topic_id, twice))
                if name is None:
                    ids[names[-1]] = topic_id
            except KafkaError as error:
                responses.append(_deleted(name, topic_id, TopicOutcome(name or "", error=error)))

        await in_slices(look_up, dict.fromkeys(requested))
        try:
            outcomes = await self._administration.delete_topics(names, ids, charge=quota.charge)
        except KafkaError as error:
            outcomes = [TopicOutcome(name, error=error) for name in names]

        def described(outcome: TopicOutcome) -> DeleteTopicsResponse.DeletableTopicResult:
            topic_id = outcome.topic.topic_id if outcome.topic else ids.get(outcome.name, ZERO_UUID)
            return _deleted(outcome.name, topic_id, outcome)

        responses += await in_slices(described, outcomes)
        return DeleteTopicsResponse(throttle_time_ms=quota.throttle_ms(), responses=responses)

    def _name_to_delete(self, name: str | None, topic_id: UUID, twice: set[str]) -> str:
        if (name or str(topic_id)) in twice:
            raise more_than_once("topic")
        if name is not None:
            if topic_id != ZERO_UUID:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Specify the topic's name or its id, not both.")
            return name
        found = self._metadata.image.topic_names.get(topic_id)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "No topic has this id.")
        return found

    async def create_partitions(
        self, context: RequestContext, request: CreatePartitionsRequest
    ) -> CreatePartitionsResponse:
        """Increase the number of partitions of topics or, with ``validate_only``, check whether that is possible."""
        quota = self._quota_of(context, ADD_STRICT_SINCE)
        twice = named_twice(topic.name for topic in request.topics)
        wanted = [
            NewPartitions(
                topic.name,
                topic.count,
                None if topic.assignments is None else [a.broker_ids for a in topic.assignments],
            )
            for topic in request.topics
            if topic.name not in twice
        ]
        try:
            outcomes = await self._administration.add_partitions(
                wanted, charge=quota.charge, validate_only=request.validate_only
            )
        except KafkaError as error:
            outcomes = [TopicOutcome(more.topic, error=error) for more in wanted]
        outcomes += [TopicOutcome(name, error=more_than_once("topic")) for name in twice]
        results = []
        for outcome in outcomes:
            code, message = _error(outcome)
            results.append(
                CreatePartitionsResponse.CreatePartitionsTopicResult(
                    name=outcome.name, error_code=code, error_message=message
                )
            )
        return CreatePartitionsResponse(throttle_time_ms=quota.throttle_ms(), results=results)


def _new_topic(requested: CreateTopicsRequest.CreatableTopic) -> NewTopic:
    check_number_of_entries(len(requested.configs))
    if any(config.value is None for config in requested.configs):
        raise KafkaError(ErrorCode.INVALID_CONFIG, "Null value not supported for the configuration of a new topic.")
    return NewTopic(
        name=requested.name,
        partitions=requested.num_partitions,
        replication_factor=requested.replication_factor,
        assignment={a.partition_index: tuple(a.broker_ids) for a in requested.assignments},
        configs={config.name: config.value for config in requested.configs if config.value is not None},
    )


def _configs(config: BrokerConfig, given: Mapping[str, str]) -> list[CreateTopicsResponse.CreatableTopicConfigs]:
    return [
        CreateTopicsResponse.CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.is_sensitive,
        )
        for entry in describe_topic(config, given)
    ]


def _created(
    topic: TopicImage, configs: list[CreateTopicsResponse.CreatableTopicConfigs]
) -> CreateTopicsResponse.CreatableTopicResult:
    return CreateTopicsResponse.CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=configs,
    )


def _error(outcome: TopicOutcome) -> tuple[ErrorCode, str | None]:
    if outcome.error is None:
        return ErrorCode.NONE, None
    return outcome.error.code, outcome.error.message or outcome.error.code.message


def _deleted(name: str | None, topic_id: UUID, outcome: TopicOutcome) -> DeleteTopicsResponse.DeletableTopicResult:
    code, message = _error(outcome)
    return DeleteTopicsResponse.DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=code, error_message=message
    )
