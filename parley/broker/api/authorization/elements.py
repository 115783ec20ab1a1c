"""Refusal of individual elements of a request: guards find the forbidden elements, and the response contains an error
for each of them. The handler processes all other elements."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from inspect import isawaitable
from typing import Any, TypeVar

from parley.broker.metadata.current import Metadata
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.runtime.steps import Steps
from parley.broker.security.authorization import Authorization
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode
from parley.protocol.messages import APIS
from parley.protocol.schema import Response
from parley.protocol.uuids import UUID

E = TypeVar("E")
R = TypeVar("R")
STEPS_PER_TURN = 500
"""The number of elements, one per step, that are checked or refused before the event loop serves other clients. That
takes one to three milliseconds."""


@dataclass(frozen=True, slots=True)
class Checks:
    """The authorization and the metadata that all guards use."""

    authorization: Authorization
    metadata: Metadata

    def topic_name(self, name: str | None, topic_id: UUID) -> str | None:
        """Return the name of a topic that a request identifies by name or id; None for an unknown id."""
        return name or self.metadata.image.topic_names.get(topic_id)

    def name_of(self, topic: Any) -> str | None:
        """Return the name of a topic from an element with a ``name`` and a ``topic_id``; None for an unknown id."""
        return self.topic_name(topic.name, topic.topic_id)

    def divide(
        self,
        context: RequestContext,
        operation: Operation,
        type: ResourceType,
        elements: Iterable[E],
        name_of: Callable[[E], str | None],
    ) -> Steps[tuple[list[E], list[E]]]:
        """Return the elements on which the client may perform the operation, and the refused elements.

        ``name_of`` returns None if an element's topic id is unknown. Such an element is refused, because a topic with
        this id may be created before the handler looks it up.
        """
        named = [(each, name_of(each)) for each in elements]
        names = {name for _, name in named if name is not None}
        allowed = yield from self.allowed(context, operation, type, names)
        kept = [each for each, name in named if name in allowed]
        refused = [each for each, name in named if name not in allowed]
        return kept, refused

    def allowed(
        self,
        context: RequestContext,
        operation: Operation,
        type: ResourceType,
        names: Iterable[str],
        *,
        is_probe: bool = False,
    ) -> Steps[set[str]]:
        """Return the ``names`` on which the client may perform the operation. If ``is_probe``, the checks are not
        audited."""
        access = (context, operation, type)
        may = self.authorization.probe(*access) if is_probe else partial(self.authorization.may, *access)
        allowed = set()
        for name in names:
            if may(name):
                allowed.add(name)
            yield
        return allowed

    def code_of(self, topic: Any) -> ErrorCode:
        """Return the error for a refused topic: UNKNOWN_TOPIC_ID, or TOPIC_AUTHORIZATION_FAILED if its id is known."""
        is_unknown = self.name_of(topic) is None
        return ErrorCode.UNKNOWN_TOPIC_ID if is_unknown else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def listed(elements: Iterable[E]) -> Steps[list[E]]:
    """Return the elements in a list. Each step takes one of them."""
    made: list[E] = []
    for element in elements:
        made.append(element)
        yield
    return made


def made_of(elements: Iterable[E], make: Callable[[E], Steps[R]]) -> Steps[list[R]]:
    """Return the result of ``make`` for each element. ``make`` itself works in steps."""
    made: list[R] = []
    for element in elements:
        made.append((yield from make(element)))
        yield
    return made


def refusal(context: RequestContext, operation: Operation, type: ResourceType, name: str = "") -> str:
    """Return the error message for a client that lacks a right. It names the right and the resource."""
    right = operation.name.title().replace("_", "")
    resource = type.name.lower().replace("_", " ")
    on = f"the {resource} '{name}'" if type is not ResourceType.CLUSTER else "the cluster"
    return f"Authorization failed. {context.session.principal} lacks the right {right} on {on}."


def after(result: Any, change: Callable[[Any], Any]) -> Any:
    """Apply ``change`` to a handler's response. ``result`` is the response, or an awaitable of it.

    Returns the changed response, or an awaitable of it. Returns None if the handler sends no response.
    """
    if result is None:
        return None
    if isinstance(result, Response):
        return change(result)
    if isinstance(result, asyncio.Future):
        return _changed_later(result, change)
    return _changed(result, change)


def _changed_later(waiting: asyncio.Future[Any], change: Callable[[Any], Any]) -> asyncio.Future[Any]:
    """Return a future of the changed response. Like the handler's future ``waiting``, it does not count as work in
    progress. Cancelling it cancels ``waiting``."""
    changed: asyncio.Future[Any] = waiting.get_loop().create_future()

    def take(done: asyncio.Future[Any]) -> None:
        if changed.done():
            return
        if done.cancelled():
            changed.cancel()
            return
        try:
            response = done.result()
            changed.set_result(None if response is None else change(response))
        except Exception as error:
            changed.set_exception(error)

    def pass_on(done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            waiting.cancel()

    waiting.add_done_callback(take)
    changed.add_done_callback(pass_on)
    return changed


async def _changed(pending: Awaitable[Any], change: Callable[[Any], Any]) -> Any:
    response = await pending
    while isawaitable(response):  # a coroutine may return a future of its response
        response = await response
    return None if response is None else change(response)


def with_refused(
    handler: Handler, context: RequestContext, request: Any, field: str, kept: list[Any], refused: list[Any], into: str
) -> Any:
    """Call the handler with only the elements ``kept`` in the list ``field`` of the request, and add the results
    ``refused`` to the list ``into`` of the response.

    Returns the response, or an awaitable of it. If all elements are refused, the handler is not called.
    """
    if not refused:
        return handler(context, request)
    if not kept:
        response: Any = APIS[context.api_key].response.blank()
        setattr(response, into, refused)
        return response
    setattr(request, field, kept)

    def add(response: Any) -> Any:
        getattr(response, into).extend(refused)
        return response

    return after(handler(context, request), add)
