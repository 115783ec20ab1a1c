"""FindCoordinator: which broker coordinates a group, a transactional id or a share partition.

The key hashes to a partition of an internal topic, and the leader of this partition is the coordinator. The topic is
created when a client first needs it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, Protocol

from parley.broker.api.requested_names import in_slices
from parley.broker.coordinators.internal_topic import partition_of
from parley.broker.coordinators.share_state.share_partition_key import parse_key
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.types import NO_LEADER, Endpoint
from parley.broker.network.request_context import Handler, RequestContext
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
SHARE_KEY: Final = 2
"""The key types in FindCoordinator: a group id, a transactional id, or the key of a share partition."""

SHARE_KEY_SINCE: Final = 6
"""The first version of FindCoordinator that supports share partitions (KIP-932)."""

FIRST_LOAD_S: Final = 1.0
"""The maximum time, in seconds, that FindCoordinator waits for this broker to load the partitions that it
coordinates."""


class InternalTopicCreation(Protocol):
    """The part that creates the internal topics of coordinators when they are first needed."""

    async def create_internal_topic(self, name: str) -> None:
        """Create the topic unless it exists. Raises KafkaError if it cannot be created now."""
        ...


@dataclass(frozen=True, slots=True)
class CoordinatorKind:
    """One type of coordinator: the topic that stores its state, and a function that waits until this broker has loaded
    its coordinators of this type, for at most the given number of seconds."""

    topic: str
    until_loaded: Callable[[float], Awaitable[None]]


class FindCoordinatorApi:
    """Handler of FindCoordinator."""

    def __init__(
        self, metadata: Metadata, creation: InternalTopicCreation, kinds: Mapping[int, CoordinatorKind]
    ) -> None:
        """``kinds`` maps each key type of FindCoordinator to the type of coordinator for such keys."""
        self._metadata = metadata
        self._creation = creation
        self._kinds = kinds

    def routes(self) -> dict[int, Handler]:
        return {FindCoordinatorRequest.API_KEY: self.find_coordinator}

    async def find_coordinator(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        """Return the coordinator of a key or, from version 4 on, of several keys (KIP-699). Creates the internal topic
        if it does not exist.

        A key without a coordinator gets an error code: COORDINATOR_NOT_AVAILABLE if the topic cannot be created or its
        partition has no reachable leader, or INVALID_REQUEST for an unknown key type or a malformed key.
        """
        keys = dict.fromkeys(request.coordinator_keys) if context.api_version >= 4 else [request.key]
        kind = self._kinds.get(request.key_type)
        if request.key_type == SHARE_KEY and context.api_version < SHARE_KEY_SINCE:
            kind = None
        if kind is None:
            text = f"Unknown coordinator type {request.key_type}."
            refusal: KafkaError | None = KafkaError(ErrorCode.INVALID_REQUEST, text)
        else:
            refusal = await self._prepared(kind)
        found = await in_slices(partial(self._coordinator_of, context, kind, refusal), keys)
        if context.api_version >= 4:
            return FindCoordinatorResponse(coordinators=found)
        first = found[0]
        return FindCoordinatorResponse(
            error_code=first.error_code,
            error_message=first.error_message,
            node_id=first.node_id,
            host=first.host,
            port=first.port,
        )

    async def _prepared(self, kind: CoordinatorKind) -> KafkaError | None:
        """Create the topic if it does not exist, and wait for at most ``FIRST_LOAD_S`` until this broker has loaded its
        coordinators of this type.

        Returns the error if the topic cannot be created now, else None.
        """
        try:
            if kind.topic not in self._metadata.image.topics:
                await self._creation.create_internal_topic(kind.topic)
        except KafkaError as error:
            return error
        # The coordinator would reject a client that connects too early, and some clients retry only after seconds.
        await kind.until_loaded(FIRST_LOAD_S)
        return None

    def _coordinator_of(
        self, context: RequestContext, kind: CoordinatorKind | None, refusal: KafkaError | None, key: str
    ) -> FindCoordinatorResponse.Coordinator:
        if kind is None or refusal is not None:
            return _no_coordinator(key, refusal or KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        try:
            if kind is self._kinds.get(SHARE_KEY):
                parse_key(key)
            node_id, endpoint = self._locate(context, kind, key)
        except KafkaError as error:
            return _no_coordinator(key, error)
        return FindCoordinatorResponse.Coordinator(
            key=key,
            node_id=node_id,
            host=endpoint.host,
            port=endpoint.port,
            error_code=ErrorCode.NONE,
            error_message=None,
        )

    def _locate(self, context: RequestContext, kind: CoordinatorKind, key: str) -> tuple[int, Endpoint]:
        image = self._metadata.image
        topic = image.topics.get(kind.topic)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        leader = topic.partitions[partition_of(key, len(topic.partitions))].leader
        broker = image.brokers.get(leader) if leader != NO_LEADER else None
        endpoint = broker.endpoint(context.listener) if broker is not None else None
        if endpoint is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return leader, endpoint


def _no_coordinator(key: str, error: KafkaError) -> FindCoordinatorResponse.Coordinator:
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.message or None
    )
