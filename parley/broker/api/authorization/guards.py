"""Guards authorize requests before the handlers see them, if the broker has an authorizer.

A guard enforces the rows of the table ``parley.broker.security.requirements`` for one API. It refuses the whole
request, or removes from it the elements that the client may not use, and adds their errors to the response. A handler
therefore never sees forbidden elements. Without an authorizer there are no guards, and no cost.

An API that is not in the table is refused. ``CHECKED_BY_HANDLERS`` lists the APIs whose handlers check the client's
rights themselves. A broker checks a request before it forwards it. The controller checks the request in the envelope
again, with the client's rights, so both brokers' audit logs contain it. A broker's own requests over a listener for
brokers (to create a topic that a client has named, to list offsets) need ClusterAction.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import partial
from types import GeneratorType
from typing import Any, Final

from parley.broker.api.authorization import groups, records, share_groups, streams_groups, topics, transactions
from parley.broker.api.authorization.elements import STEPS_PER_TURN, Checks, refusal
from parley.broker.api.authorization.refused_requests import refuse
from parley.broker.metadata.current import Metadata
from parley.broker.network.peers import is_broker
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.runtime.steps import now_or_in_turns
from parley.broker.security.authorization import Authorization
from parley.broker.security.requirements import OPEN_TO_ALL, WHOLE_CLUSTER, Requirement
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages import APIS
from parley.protocol.messages.fetch import FetchRequest

Guard = Callable[[Checks, Handler, RequestContext, Any], Any]
"""A function that checks a request and calls the handler with the permitted elements. It may work in steps
(``runtime.steps``)."""

_KEYS: Final = {api.name: key for key, api in APIS.items()}

CHECKED_BY_HANDLERS: Final = frozenset(
    _KEYS[name]
    for name in (
        "Metadata",
        "ShareFetch",
        "ShareAcknowledge",
        "DescribeTopicPartitions",
        "DescribeCluster",
        "CreateDelegationToken",
        "RenewDelegationToken",
        "ExpireDelegationToken",
        "DescribeDelegationToken",
    )
)

_FAMILIES: tuple[Mapping[str, Callable[..., Any]], ...] = (
    records.GUARDS,
    topics.GUARDS,
    groups.GUARDS,
    share_groups.GUARDS,
    streams_groups.GUARDS,
    transactions.GUARDS,
)
BETWEEN_BROKERS: Final = frozenset(
    _KEYS[name]
    for name in (
        "FetchMetadata",
        "StoreDelegationToken",
        "HandOverLeadership",
        "ReportOfflineReplicas",
        "Envelope",
        "AlterPartition",
        "AssignReplicasToDirs",
        "ControlledShutdown",
        "GetReplicaLogInfo",
    )
)
"""APIs that only brokers use. Kafka's brokers do not serve the last four to clients, either."""
_FETCH: Final = _KEYS["Fetch"]

FROM_BROKERS: Final = frozenset({_KEYS["CreateTopics"], _KEYS["ListOffsets"]})
"""APIs for clients that brokers use, too: CreateTopics for topics that clients name, and ListOffsets as followers."""

GUARDS: Final[Mapping[int, Guard]] = {_KEYS[name]: guard for family in _FAMILIES for name, guard in family.items()}


def guarded(routes: Mapping[int, Handler], authorization: Authorization, metadata: Metadata) -> dict[int, Handler]:
    """Return the handlers by API key, each behind its guard. Without an authorizer, return the bare handlers."""
    if not authorization.is_enforced:
        return dict(routes)
    checks = Checks(authorization, metadata)
    guards = {key: _guarded(key, handler, checks) for key, handler in routes.items()}
    return {
        key: partial(_unless_from_broker, authorization, routes[key], guard) if key in FROM_BROKERS else guard
        for key, guard in guards.items()
    }


def between_brokers(routes: Mapping[int, Handler], listeners: Container[str]) -> dict[int, Handler]:
    """Return the handlers by API key. Handlers of APIs that only brokers use refuse requests that arrive through a
    listener that is not one of ``listeners``, with CLUSTER_AUTHORIZATION_FAILED.

    A follower's fetch through another listener is refused, too, because fetches of followers affect the high watermark.
    FetchMetadata is restricted because its response contains the keys of all SCRAM users. The restrictions apply even
    without an authorizer.
    """
    return {
        key: partial(_on_listeners, listeners, handler)
        if key in BETWEEN_BROKERS
        else partial(_fetch_on_listeners, listeners, handler)
        if key == _FETCH
        else handler
        for key, handler in routes.items()
    }


def _fetch_on_listeners(
    listeners: Container[str], handler: Handler, context: RequestContext, request: FetchRequest
) -> Any:
    if not records.is_of_follower(request) or context.listener in listeners:
        return handler(context, request)
    return records.refused_fetch(request)


def _on_listeners(listeners: Container[str], handler: Handler, context: RequestContext, request: Any) -> Any:
    if context.listener in listeners:
        return handler(context, request)
    return refuse(context, request, KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))


def _unless_from_broker(
    authorization: Authorization, handler: Handler, guard: Handler, context: RequestContext, request: Any
) -> Any:
    if is_broker(context.client_id) and authorization.is_broker(context.session):
        return handler(context, request)
    return guard(context, request)


def _guarded(api_key: int, handler: Handler, checks: Checks) -> Handler:
    if api_key in OPEN_TO_ALL or api_key in CHECKED_BY_HANDLERS:
        return handler
    guard = GUARDS.get(api_key)
    if guard is not None:
        return partial(_checked, guard, checks, handler)
    row = WHOLE_CLUSTER.get(api_key)
    if row is not None:
        return partial(_on_cluster, row, checks, handler)
    return _refuse_unknown


def _checked(guard: Guard, checks: Checks, handler: Handler, context: RequestContext, request: Any) -> Any:
    result = guard(checks, handler, context, request)
    # Not collections.abc.Generator: a handler's coroutine that has already started (``at_once``) has a generator's
    # methods.
    return now_or_in_turns(result, STEPS_PER_TURN) if isinstance(result, GeneratorType) else result


def _on_cluster(row: Requirement, checks: Checks, handler: Handler, context: RequestContext, request: Any) -> Any:
    if checks.authorization.may_on_cluster(context, row.operation):
        return handler(context, request)
    text = refusal(context, row.operation, ResourceType.CLUSTER)
    return refuse(context, request, KafkaError(row.error, text))


def _refuse_unknown(context: RequestContext, request: Any) -> Any:
    return refuse(context, request, KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
