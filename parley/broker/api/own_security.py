"""Checks changes to this broker's own security settings by loading them, before the controller stores them.

Only this broker can read the files that its listeners' settings name, and Kafka's clients send such changes to the
broker to which they apply. So if a key store cannot be opened, the client gets the error. Otherwise the error would
appear only in this broker's log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from parley.broker.api.configs import incremental_change, replacement
from parley.broker.config import ConfigError
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.controller.configs import ConfigChange, entries_after
from parley.broker.metadata.types import ConfigResource, ResourceType
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.security.listener_security import ListenerSecurity
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_CONCERNED = ("listener.name.", "ssl.", "sasl.", "principal.builder.", "connections.max.reauth.")
ChangeOf = Callable[[Any], ConfigChange]
"""Returns the change to one resource in a request. Raises KafkaError if the change is invalid."""


class OwnSecurity:
    """A wrapper of the handlers that change configurations. It first checks changes to this broker's own security."""

    def __init__(
        self,
        broker_id: int,
        config: DynamicConfig,
        listeners: Sequence[ListenerSecurity],
        executor: Executor | None,
    ) -> None:
        """``executor`` reads the files. None means the executor of the event loop."""
        self._broker_id = broker_id
        self._config = config
        self._listeners = [each for each in listeners if each.address.is_tls or each.address.is_sasl]
        self._executor = executor

    def around(self, routes: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the routes, with handlers that first check changes to this broker's security settings. A change that
        this broker could not use gets an error, and the other changes of the request are made."""
        return {
            **routes,
            AlterConfigsRequest.API_KEY: self._tried(
                routes[AlterConfigsRequest.API_KEY], replacement, AlterConfigsResponse
            ),
            IncrementalAlterConfigsRequest.API_KEY: self._tried(
                routes[IncrementalAlterConfigsRequest.API_KEY], incremental_change, IncrementalAlterConfigsResponse
            ),
        }

    def _tried(self, handler: Handler, change_of: ChangeOf, response: Any) -> Handler:
        def handle(context: RequestContext, request: Any) -> Any:
            if not any(map(self._is_concerned, request.resources)):
                return handler(context, request)
            return self._try(handler, change_of, response, context, request)

        return handle

    def _is_concerned(self, requested: Any) -> bool:
        return (
            bool(self._listeners)
            and requested.resource_type == ResourceType.BROKER
            and requested.resource_name == str(self._broker_id)
            and any(each.name.startswith(_CONCERNED) for each in requested.configs)
        )

    async def _try(
        self, handler: Handler, change_of: ChangeOf, response: Any, context: RequestContext, request: Any
    ) -> Any:
        refused, accepted = [], []
        for requested in request.resources:
            try:
                if self._is_concerned(requested):
                    await self._check(change_of(requested))
                accepted.append(requested)
            except KafkaError as error:
                refused.append(_refusal(response, requested, error))
        request.resources = accepted
        handled = handler(context, request) if accepted or not refused else response(responses=[])
        combined = await handled if isinstance(handled, Awaitable) else handled
        combined.responses = [*combined.responses, *refused]
        return combined

    async def _check(self, change: ConfigChange) -> None:
        """Raise KafkaError (INVALID_REQUEST, as in Kafka) if this broker could not use the changed configuration."""
        now = self._config()
        entries = entries_after(change, now.per_broker, self._current_list)
        try:
            changed = now.with_dynamic(now.cluster_default, entries)
            loop = asyncio.get_running_loop()
            for listener in self._listeners:
                demands = await loop.run_in_executor(self._executor, listener.read, changed)
                listener.discard(demands)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error

    def _current_list(self, resource: ConfigResource, name: str) -> list[str]:
        config = self._config()
        known = config.key(name)
        value = getattr(config, known.attribute) if known is not None else ()
        if not isinstance(value, tuple):
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} is not a list.")
        return list(value)


def _refusal(response: Any, requested: Any, error: KafkaError) -> Any:
    """Return the error result of one resource."""
    return response.AlterConfigsResourceResponse(
        error_code=error.code,
        error_message=error.message or error.code.message,
        resource_type=requested.resource_type,
        resource_name=requested.resource_name,
    )
