"""DescribeAcls, CreateAcls, DeleteAcls (KIP-140): the ACLs of the cluster.

Any broker can describe the ACLs, as it knows them. The controller changes them. The response to a change is sent when
all live brokers have applied it, or after ``APPLIED_MAX_S``. Without an authorizer that uses ACLs, all three requests
are rejected with SECURITY_DISABLED.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from parley.broker.controller.acls import CHANGES_MAX, create_acls, delete_acls, too_many_deletions
from parley.broker.controller.controller import Controller
from parley.broker.controller.decision import Decide
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.metadata.current import Metadata
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.runtime.steps import Steps, each_of, in_turns, now_or_in_turns
from parley.broker.security.acls.bindings import (
    AclBinding,
    AclFilter,
    PatternType,
    PermissionType,
    ResourcePattern,
)
from parley.broker.security.acls.evaluation import AclIndex
from parley.broker.security.authorization import Authorization
from parley.broker.security.authorizer import AclAuthorizer
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.acls import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

T = TypeVar("T")

_LITERAL: Final = PatternType.LITERAL

APPLIED_MAX_S = 1.0
"""The maximum time, in seconds, that the response to a change waits for brokers that have not applied it yet."""
EXAMINED_IN_A_STEP: Final = 1_000
"""The number of ACLs compared with a filter before the event loop serves other clients. The comparisons take one or two
milliseconds."""
SELECTED_MAX: Final = 3 * CHANGES_MAX
"""The maximum number of ACLs in the response to a DeleteAcls. An ACL that several filters select counts once for each
filter."""
PATTERN_TYPES_SINCE = 1
"""The first version of the ACL APIs that has pattern types. In version 0 all patterns are literal."""


class AclsApi:
    """Handlers of the ACL APIs."""

    def __init__(
        self,
        controller: Controller,
        metadata: Metadata,
        authorization: Authorization,
        publisher: MetadataPublisher,
    ) -> None:
        self._controller = controller
        self._metadata = metadata
        self._authorization = authorization
        self._publisher = publisher

    def routes(self) -> dict[int, Handler]:
        return {
            DescribeAclsRequest.API_KEY: self.describe_acls,
            CreateAclsRequest.API_KEY: self.create_acls,
            DeleteAclsRequest.API_KEY: self.delete_acls,
        }

    def describe_acls(self, context: RequestContext, request: DescribeAclsRequest) -> Any:
        """Return the response with the ACLs that match the filter, grouped by resource. If there are many ACLs, return
        a coroutine that returns the response.

        Raises KafkaError: SECURITY_DISABLED if no authorizer uses ACLs, or INVALID_REQUEST for an invalid filter.
        """
        authorizer = self._acl_authorizer()
        wanted = _filter(request, context.api_version)
        return now_or_in_turns(describing(authorizer.index, wanted, context))

    async def create_acls(self, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
        """Add ACLs. Each creation succeeds or fails independently.

        An error of the whole request, for example SECURITY_DISABLED or NOT_CONTROLLER, is returned once for each
        creation.
        """
        try:
            self._acl_authorizer()
            bindings, outcomes = _each(partial(_binding, version=context.api_version), request.creations)
            created = await self._change(partial(create_acls, wanted=bindings)) if bindings else []
            results = iter(created)
            outcomes = [next(results) if outcome is None else outcome for outcome in outcomes]
        except KafkaError as error:
            outcomes = [error for _ in request.creations]
        make = CreateAclsResponse.AclCreationResult
        return CreateAclsResponse(results=[make() if error is None else make(**_fields(error)) for error in outcomes])

    async def delete_acls(self, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
        """Delete the ACLs that match at least one filter. The response lists the deleted ACLs of each filter, or the
        filter's error.

        An error of the whole request, for example SECURITY_DISABLED, NOT_CONTROLLER, or INVALID_REQUEST for too many
        selected ACLs, is returned once for each filter.
        """
        make = DeleteAclsResponse.DeleteAclsFilterResult
        try:
            authorizer = self._acl_authorizer()
            filters, outcomes = _each(partial(_filter, version=context.api_version), request.filters)
            selected = await in_turns(selecting(authorizer.index, filters))
            deletions = await self._change(partial(delete_acls, selected=selected)) if filters else []
        except KafkaError as error:
            return DeleteAclsResponse(
                filter_results=[make(matching_acls=[], **_fields(error)) for _ in request.filters]
            )
        results = iter(deletions)
        return DeleteAclsResponse(
            filter_results=[
                make(matching_acls=[_deleted(acl) for acl in next(results).deleted])
                if error is None
                else make(matching_acls=[], **_fields(error))
                for error in outcomes
            ]
        )

    def _acl_authorizer(self) -> AclAuthorizer:
        authorizer = self._authorization.authorizer
        if not isinstance(authorizer, AclAuthorizer):
            raise KafkaError(
                ErrorCode.SECURITY_DISABLED,
                "No Authorizer is configured on the broker: set authorizer.class.name on every broker.",
            )
        return authorizer

    async def _change(self, decide: Decide[T]) -> T:
        result = await self._controller.submit(decide)
        await self._publisher.until_applied(APPLIED_MAX_S)
        return result


def selecting(index: AclIndex, filters: Sequence[AclFilter]) -> Steps[list[list[AclBinding]]]:
    """Return a list of the ACLs that each filter selects, in the order of the filters.

    Raises KafkaError (INVALID_REQUEST) if one filter selects more ACLs than one request may delete, or all filters
    together select more than ``SELECTED_MAX``.
    """
    selected = []
    count = examined = 0
    for wanted in filters:
        found: list[AclBinding] = []
        for binding in index.candidates(wanted):
            if wanted.matches(binding):
                found.append(binding)
            examined += 1
            if not examined % EXAMINED_IN_A_STEP:  # counted for all filters: each alone may examine few
                yield
        selected.append(found)
        count += len(found)
        refusal = too_many_deletions(len(found) if count <= SELECTED_MAX else count)
        if refusal is not None:
            raise refusal
    return selected


def describing(index: AclIndex, wanted: AclFilter, context: RequestContext) -> Steps[DescribeAclsResponse]:
    """Return the response with the ACLs that the filter ``wanted`` selects, grouped by resource. In version 0, only
    ACLs with literal patterns are included."""
    version = context.api_version
    found: dict[ResourcePattern, list[DescribeAclsResponse.AclDescription]] = {}

    def look_at(acl: AclBinding) -> None:
        if not wanted.matches(acl) or (version < PATTERN_TYPES_SINCE and acl.pattern.pattern_type is not _LITERAL):
            return
        found.setdefault(acl.pattern, []).append(
            DescribeAclsResponse.AclDescription(
                principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
            )
        )

    yield from each_of(index.candidates(wanted), EXAMINED_IN_A_STEP, look_at)
    resources: list[DescribeAclsResponse.DescribeAclsResource] = []

    def add(resource: tuple[ResourcePattern, list[DescribeAclsResponse.AclDescription]]) -> None:
        pattern, acls = resource
        resources.append(
            DescribeAclsResponse.DescribeAclsResource(
                resource_type=pattern.type, resource_name=pattern.name, pattern_type=pattern.pattern_type, acls=acls
            )
        )

    yield from each_of(found.items(), EXAMINED_IN_A_STEP, add)
    context.has_many_elements |= len(resources) > EXAMINED_IN_A_STEP
    return DescribeAclsResponse(resources=resources)


def _each(parse: Callable[[Any], T], requested: Sequence[Any]) -> tuple[list[T], list[KafkaError | None]]:
    """Parse the elements of a request with ``parse``, which raises KafkaError for an invalid element. Returns the valid
    elements, and an error or None for each element of the request."""
    parsed: list[T] = []
    errors: list[KafkaError | None] = []
    for each in requested:
        try:
            parsed.append(parse(each))
            errors.append(None)
        except KafkaError as error:
            errors.append(error)
    return parsed, errors


def _binding(requested: CreateAclsRequest.AclCreation, version: int) -> AclBinding:
    pattern_type = requested.resource_pattern_type if version >= PATTERN_TYPES_SINCE else PatternType.LITERAL
    try:
        return AclBinding(
            ResourcePattern(ResourceType(requested.resource_type), PatternType(pattern_type), requested.resource_name),
            requested.principal,
            requested.host,
            Operation(requested.operation),
            PermissionType(requested.permission_type),
        )
    except ValueError as unknown:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"An ACL contains an unknown element: {unknown}.") from None


def _filter(requested: DescribeAclsRequest | DeleteAclsRequest.DeleteAclsFilter, version: int) -> AclFilter:
    pattern_type = requested.pattern_type_filter if version >= PATTERN_TYPES_SINCE else PatternType.LITERAL
    try:
        return AclFilter(
            ResourceType(requested.resource_type_filter),
            PatternType(pattern_type),
            requested.resource_name_filter,
            requested.principal_filter,
            requested.host_filter,
            Operation(requested.operation),
            PermissionType(requested.permission_type),
        )
    except ValueError as unknown:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"A filter contains an unknown element: {unknown}.") from None


def _deleted(acl: AclBinding) -> DeleteAclsResponse.DeleteAclsMatchingAcl:
    return DeleteAclsResponse.DeleteAclsMatchingAcl(
        resource_type=acl.pattern.type,
        resource_name=acl.pattern.name,
        pattern_type=acl.pattern.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _fields(error: KafkaError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message or error.code.message}
