"""DescribeAcls, CreateAcls, DeleteAcls: access rules (KIP-140).

Resource types: 1 any, 2 topic, 3 group, 4 cluster, 5 transactional id, 6 delegation token, 7 user.

Pattern types: 1 any, 2 match (any literal, wildcard or prefix that applies to the name), 3 literal, 4 prefixed.

Operations: 1 any, 2 all, 3 read, 4 write, 5 create, 6 delete, 7 alter, 8 describe, 9 cluster action, 10 describe
configs, 11 alter configs, 12 idempotent write, 13 create tokens, 14 describe tokens, 15 two-phase commit.

Permission types: 1 any, 2 deny, 3 allow.
"""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i8, i16, i32


class DescribeAclsRequest(Request, key=29, versions="0-3", flexible="2+"):
    """Request the access rules that match a filter.

    Versions:
        1: pattern_type_filter, because a rule may apply to a prefix of names (KIP-290); the client enforces
            throttle_time_ms itself (KIP-219).
        2: flexible encoding (KIP-482).
        3: users as resources (KIP-373).
    """

    resource_type_filter: i8
    resource_name_filter: str | None  # None: any
    pattern_type_filter: i8 = field("1+", default=3)
    principal_filter: str | None  # None: any
    host_filter: str | None  # None: any
    operation: i8
    permission_type: i8


class DescribeAclsResponse(Response, key=29, versions="0-3", flexible="2+"):
    """The matching rules.

    Versions:
        1: pattern_type (KIP-290); sent before the client is throttled, not after (KIP-219).
        2: flexible encoding (KIP-482).
        3: users as resources (KIP-373).
    """

    class DescribeAclsResource(Struct):
        """The rules of one resource."""

        resource_type: i8
        resource_name: str
        pattern_type: i8 = field("1+", default=3)
        acls: list[DescribeAclsResponse.AclDescription]

    class AclDescription(Struct):
        """An access rule of the resource: a principal, a host, an operation and a permission."""

        principal: str
        host: str
        operation: i8
        permission_type: i8

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    resources: list[DescribeAclsResource]


class CreateAclsRequest(Request, key=30, versions="0-3", flexible="2+"):
    """Add access rules.

    Versions:
        1: resource_pattern_type, because a rule may apply to a prefix of names (KIP-290); the client enforces
            throttle_time_ms itself (KIP-219).
        2: flexible encoding (KIP-482).
        3: users as resources (KIP-373).
    """

    class AclCreation(Struct):
        """An access rule to add."""

        resource_type: i8
        resource_name: str
        resource_pattern_type: i8 = field("1+", default=3)
        principal: str
        host: str
        operation: i8
        permission_type: i8

    creations: list[AclCreation]


class CreateAclsResponse(Response, key=30, versions="0-3", flexible="2+"):
    """The outcome for each rule, in the order of the request.

    Versions:
        1: sent before the client is throttled, not after (KIP-219).
        2: flexible encoding (KIP-482).
        3: same layout; users as resources in the request (KIP-373).
    """

    class AclCreationResult(Struct):
        """The outcome for one rule."""

        error_code: i16 = 0
        error_message: str | None = None

    throttle_time_ms: i32 = 0
    results: list[AclCreationResult]


class DeleteAclsRequest(Request, key=31, versions="0-3", flexible="2+"):
    """Delete the access rules that match any of the filters.

    Versions:
        1: pattern_type_filter, because a rule may apply to a prefix of names (KIP-290); the client enforces
            throttle_time_ms itself (KIP-219).
        2: flexible encoding (KIP-482).
        3: users as resources (KIP-373).
    """

    class DeleteAclsFilter(Struct):
        """A filter: a rule that matches it is deleted."""

        resource_type_filter: i8
        resource_name_filter: str | None  # None: any
        pattern_type_filter: i8 = field("1+", default=3)
        principal_filter: str | None  # None: any
        host_filter: str | None  # None: any
        operation: i8
        permission_type: i8

    filters: list[DeleteAclsFilter]


class DeleteAclsResponse(Response, key=31, versions="0-3", flexible="2+"):
    """The rules that each filter deleted, in the order of the request.

    Versions:
        1: pattern_type (KIP-290); sent before the client is throttled, not after (KIP-219).
        2: flexible encoding (KIP-482).
        3: users as resources (KIP-373).
    """

    class DeleteAclsFilterResult(Struct):
        """The rules that one filter deleted."""

        error_code: i16 = 0
        error_message: str | None = None
        matching_acls: list[DeleteAclsResponse.DeleteAclsMatchingAcl]

    class DeleteAclsMatchingAcl(Struct):
        """One rule, deleted unless it has an error."""

        error_code: i16 = 0
        error_message: str | None = None
        resource_type: i8
        resource_name: str
        pattern_type: i8 = field("1+", default=3)
        principal: str
        host: str
        operation: i8
        permission_type: i8

    throttle_time_ms: i32 = 0
    filter_results: list[DeleteAclsFilterResult]
