"""The guard of requests that describe consumer groups, share groups or streams groups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from parley.broker.api.authorization.elements import Checks, after, listed, with_refused
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.runtime.steps import Steps
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class DescribeGuard:
    """A guard that replaces a group in the response by an error if the client may not describe the group or one of the
    group's topics."""

    undescribed: Callable[..., Any]
    """Returns the error result of one group, given the group's id, the error code and, if any, a message."""
    topics_of: Callable[[Any], set[str]]
    """Returns the names of a described group's topics."""
    topics_refused: str
    """The message for a client that may not describe one of the topics."""

    def __call__(self, checks: Checks, handler: Handler, context: RequestContext, request: Any) -> Steps[Any]:
        kept, refused = yield from checks.divide(
            context, Operation.DESCRIBE, ResourceType.GROUP, request.group_ids, lambda group: group
        )
        results = yield from listed(
            self.undescribed(group, ErrorCode.GROUP_AUTHORIZATION_FAILED) for group in dict.fromkeys(refused)
        )
        result = with_refused(handler, context, request, "group_ids", kept, results, "groups")
        return after(result, partial(self._limit, checks, context, request.include_authorized_operations))

    def _limit(self, checks: Checks, context: RequestContext, with_operations: bool, response: Any) -> Any:
        for index, group in enumerate(response.groups):
            if group.error_code != ErrorCode.NONE:
                continue
            names = self.topics_of(group)
            if names != checks.authorization.allowed(context, Operation.DESCRIBE, ResourceType.TOPIC, names):
                response.groups[index] = self.undescribed(
                    group.group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, self.topics_refused
                )
            elif with_operations:
                group.authorized_operations = checks.authorization.operations(
                    context, ResourceType.GROUP, group.group_id
                )
        return response
