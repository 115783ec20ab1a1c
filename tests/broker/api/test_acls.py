"""Filters over very many ACLs: the event loop gets turns in between, and the response is bounded."""

from __future__ import annotations

import pytest

from parley.broker.api.acls import EXAMINED_IN_A_STEP, SELECTED_MAX, describing, selecting
from parley.broker.controller.acls import CHANGES_MAX
from parley.broker.network.request_context import RequestContext
from parley.broker.runtime.steps import run_now
from parley.broker.security.acls.bindings import (
    AclBinding,
    AclFilter,
    PatternType,
    PermissionType,
    ResourcePattern,
)
from parley.broker.security.acls.evaluation import AclIndex
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.acls import DescribeAclsRequest
from tests.broker.api.bench import context


def acls(count: int) -> list[AclBinding]:
    def acl(number: int) -> AclBinding:
        pattern = ResourcePattern(ResourceType.TOPIC, PatternType.LITERAL, f"t{number}")
        return AclBinding(pattern, f"User:u{number}", "*", Operation.READ, PermissionType.ALLOW)

    return [acl(number) for number in range(count)]


def test_broad_filters_are_evaluated_in_steps_and_narrow_ones_at_once() -> None:
    index = AclIndex(acls(2 * EXAMINED_IN_A_STEP))
    broad, narrow = AclFilter(host="none"), [AclFilter(principal=f"User:u{number}") for number in range(100)]
    assert len(list(selecting(index, [broad, broad]))) == 4
    assert len(list(selecting(AclIndex(acls(EXAMINED_IN_A_STEP // 2)), [broad] * 10))) == 5
    assert not list(selecting(index, narrow))
    assert [len(each) for each in run_now(selecting(index, narrow))] == [1] * 100


def test_a_description_is_made_in_steps_and_encoded_in_a_thread() -> None:
    index, asked = AclIndex(acls(2 * EXAMINED_IN_A_STEP)), context(3, api_key=DescribeAclsRequest.API_KEY)
    steps = describing(index, AclFilter(), asked)
    assert len(list(steps)) == 4
    assert asked.has_many_elements
    assert not _few(index).has_many_elements


def _few(index: AclIndex) -> RequestContext:
    asked = context(3, api_key=DescribeAclsRequest.API_KEY)
    response = run_now(describing(index, AclFilter(principal="User:u1"), asked))
    assert [each.resource_name for each in response.resources] == ["t1"]
    return asked


@pytest.mark.parametrize(("present", "filters"), [(CHANGES_MAX + 1, 1), (CHANGES_MAX, SELECTED_MAX // CHANGES_MAX + 1)])
def test_a_request_selects_at_most_so_many(present: int, filters: int) -> None:
    index = AclIndex(acls(present))
    with pytest.raises(KafkaError, match="Cannot remove more than 10000 acls") as refused:
        run_now(selecting(index, [AclFilter()] * filters))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
