"""Creates the internal topics of streams applications, on behalf of their clients.

A heartbeat starts the creation and does not wait for it. If the creation fails, a later heartbeat reports the error to
the client, and the creation is not retried until the error is forgotten. The numbers of creations in progress and of
remembered errors are limited, because clients choose the topic names.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any, Final

from parley.broker.coordinators.groups.streams.topology import InternalTopic
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse

_log = logging.getLogger(__name__)

ERRORS_MAX: Final = 1_000
"""The maximum number of topics whose errors are remembered, as in Kafka."""

IN_PROGRESS_MAX: Final = 1_000
"""The maximum number of topics that are being created at the same time."""

Create = Callable[[RequestContext, CreateTopicsRequest], Awaitable[CreateTopicsResponse]]
"""A function that creates topics on behalf of a client, at the controller, which checks the client's rights and
quota."""


class AsClient:
    """A ``Create`` function that handles the request as if the client had sent it. ``handler`` is set when the request
    handlers exist."""

    def __init__(self) -> None:
        self.handler: Handler | None = None

    async def __call__(self, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        """Create topics. Raises KafkaError if the whole request fails: COORDINATOR_NOT_AVAILABLE until ``handler`` is
        set."""
        if self.handler is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The broker is starting.")
        inner = RequestContext(
            CreateTopicsRequest.API_KEY,
            CreateTopicsRequest.VERSIONS.max,
            context.correlation_id,
            context.client_id,
            context.client,
            context.received_at,
        )
        response: Any = self.handler(inner, request)
        while isawaitable(response):
            response = await response
        assert isinstance(response, CreateTopicsResponse)
        return response


class InternalTopics:
    """The creation of internal topics. The errors of topics that could not be created are remembered for some time."""

    def __init__(
        self, create: Create, tasks: TaskSet, monotonic: Callable[[], float], timeout_ms: Callable[[], int]
    ) -> None:
        """``timeout_ms()`` returns how long the controller may take to create topics. ``monotonic()`` returns the time
        in seconds."""
        self._create = create
        self._tasks = tasks
        self._monotonic = monotonic
        self._timeout_ms = timeout_ms
        self._in_progress: set[str] = set()
        self._errors: dict[str, tuple[float, str]] = {}  # when the error is forgotten, and its text, by topic

    def begin(self, context: RequestContext, topics: Sequence[InternalTopic], remember_ms: int) -> None:
        """Start creating the topics that are not being created and have no remembered error. Skips topics that would
        exceed the maximum number of topics in progress.

        Errors are remembered for ``remember_ms``.
        """
        self._forget()
        wanted = [each for each in topics if each.name not in self._in_progress and each.name not in self._errors]
        wanted = wanted[: max(0, IN_PROGRESS_MAX - len(self._in_progress))]
        if wanted:
            self._in_progress.update(each.name for each in wanted)
            self._tasks.start(self._created(context, wanted, remember_ms / 1000), name="create internal topics")

    def errors(self, names: Sequence[str]) -> dict[str, str]:
        """Return the remembered errors of topics, by name. Topics without an error are omitted."""
        self._forget()
        return {name: self._errors[name][1] for name in names if name in self._errors}

    def _forget(self) -> None:
        now_s = self._monotonic()
        for name in [name for name, (until_s, _) in self._errors.items() if until_s <= now_s]:
            del self._errors[name]

    async def _created(self, context: RequestContext, topics: Sequence[InternalTopic], remember_s: float) -> None:
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in topics], timeout_ms=self._timeout_ms(), validate_only=False
        )
        try:
            response = await self._create(context, request)
            failed = {
                each.name: each.error_message or ErrorCode(each.error_code).message
                for each in response.topics
                if each.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            }
        except KafkaError as error:
            failed = {topic.name: error.message for topic in topics}
        finally:
            self._in_progress.difference_update(topic.name for topic in topics)
        until_s = self._monotonic() + remember_s
        for name, text in failed.items():
            while len(self._errors) >= ERRORS_MAX:
                del self._errors[min(self._errors, key=lambda each: self._errors[each][0])]
            self._errors[name] = until_s, text
        if failed:
            facts = {"topics": sorted(failed)[:10], "reason": next(iter(failed.values()))}
            _log.warning("internal topics of a streams application cannot be created", extra=facts)


def _creatable(topic: InternalTopic) -> CreateTopicsRequest.CreatableTopic:
    make = CreateTopicsRequest.CreatableTopicConfig
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor or -1,
        assignments=[],
        configs=[make(name=name, value=value) for name, value in dict(topic.configs).items()],
    )
