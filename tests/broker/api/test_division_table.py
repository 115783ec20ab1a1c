"""Very large requests are handled in parts of a bounded size, with the same response as if they were handled whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from parley import Broker
from parley.broker.api.division_table import divisions
from parley.broker.config import BrokerConfig
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.network import division as division_module
from parley.broker.network.division import Divided, Division, JoinedResponse, Level, divided
from parley.broker.network.unfinished_responses import UnfinishedResponses
from parley.broker.runtime.steps import in_turns
from parley.broker.security.audit import AuditLog
from parley.broker.security.authorization import Authorization
from parley.broker.security.authorizer import Authorizer
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages import APIS
from parley.protocol.messages.configs import DescribeConfigsRequest
from parley.protocol.messages.group_offsets import OffsetDeleteResponse
from parley.protocol.messages.groups import DeleteGroupsRequest
from parley.protocol.messages.offsets import ListOffsetsRequest
from parley.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
)
from parley.protocol.schema import ZERO_UUID, Struct
from parley.protocol.uuids import UUID
from tests.broker.api.authorization.test_guards import AllBut, context_of, metadata
from tests.broker.api.test_every_version import TOPIC

OUTER, INNER = 3, 5
"""Elements in each outer list, and in the innermost one."""

_DIVISIONS = divisions(DynamicConfig(1, BrokerConfig.from_properties({})), Metadata(MetadataImage("test")))
EACH = [
    pytest.param(key, each, id=f"{APIS[key].name}-{number}")
    for key, of_api in _DIVISIONS.items()
    for number, each in enumerate(of_api)
]


def _renamed(element: Any, names: tuple[str, ...] | None, number: int) -> Any:
    """Return a copy of an element that names another thing."""
    if not isinstance(element, Struct):
        return f"{element}-{number}" if isinstance(element, str) else number
    twin: Any = element.copy()
    for name in names or ():
        value = getattr(twin, name)
        other = UUID(int=number + 1) if isinstance(value, UUID) else number if isinstance(value, int) else f"n{number}"
        setattr(twin, name, other)
    return twin


def _widen(struct: Any, levels: tuple[Level, ...]) -> None:
    """Give each list at ``levels`` several elements that name different things."""
    level, below = levels[0], levels[1:]
    types = {each.name: each.type.element for each in struct.fields()}
    for offset, field in enumerate(level.fields):
        element = types[field]
        assert element is not None
        first = element.struct.blank() if element.struct is not None else "" if element.kind == "str" else 0
        if below:
            _widen(first, below)
        count = OUTER if below else INNER
        setattr(struct, field, [_renamed(first, level.names, n + offset * count) for n in range(count)])


def _large(key: int, levels: tuple[Level, ...]) -> Any:
    """Return a request whose lists have several elements. Other lists are empty."""
    message: Any = APIS[key].request.blank()
    _widen(message, levels)
    return message


def _innermost(struct: Any, levels: tuple[Level, ...]) -> list[Any]:
    found = [each for field in levels[0].fields for each in getattr(struct, field) or ()]
    return found if len(levels) == 1 else [each for outer in found for each in _innermost(outer, levels[1:])]


@pytest.mark.parametrize(("key", "division"), EACH)
def test_a_request_is_divided_into_parts_of_a_bounded_size_which_ask_for_the_same(key: int, division: Division) -> None:
    request = _large(key, division.request)
    before = request.copy()
    parts = replace(division, size=2).parts(request)
    assert request == before, "the parts are copies"
    asked = _innermost(request, division.request)
    sizes = [len(_innermost(part, division.request)) for part in parts]
    assert sizes == [2] * (len(asked) // 2) + [1] * (len(asked) % 2)
    if all(level.names is not None for level in division.request[:-1]):  # else nothing tells what to join
        joined = JoinedResponse(division.request)
        for part in parts:
            joined.add(part)
        assert joined.response == request


@pytest.mark.parametrize(("key", "division"), EACH)
def test_the_response_has_the_lists_that_are_joined(key: int, division: Division) -> None:
    struct: Any = APIS[key].response
    for level in division.response:
        declared = {each.name: each for each in struct.fields()}
        element = next(declared[field].type.element for field in level.fields)
        assert element is not None
        struct = element.struct
        names = {each.name for each in struct.fields()} if struct is not None else set()
        assert set(level.names or ()) <= names


@pytest.mark.parametrize(("key", "division"), EACH)
async def test_the_loop_has_a_turn_before_each_part(
    key: int, division: Division, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Any] = []

    async def turn() -> None:
        events.append("turn")

    def handle(context: Any, part: Any) -> Any:
        events.append(len(_innermost(part, division.request)))
        return APIS[key].response.blank()

    monkeypatch.setattr(division_module, "next_turn", turn)
    small = replace(division, size=2)
    request = _large(key, division.request)
    context = SimpleNamespace(client=SimpleNamespace(has_disconnected=False))
    assert await _handled(context, handle, Divided(small, small.parts(request), request)) == APIS[key].response.blank()
    assert events[::2] == ["turn"] * (len(events) // 2)
    assert max(events[1::2]) == 2
    assert sum(events[1::2]) == len(_innermost(request, division.request))

    events.clear()
    context.client.has_disconnected = True
    await _handled(context, handle, Divided(small, small.parts(request), request))
    assert (events == ["turn"]) is division.only_reads, "changes go on to their end"


async def _handled(
    context: Any,
    handler: Callable[[Any, Any], Any],
    request: Divided,
    unfinished: UnfinishedResponses | None = None,
    size: int = 0,
) -> Any:
    """Handle a request in parts whose responses count as ``size`` bytes each."""

    async def size_of(part: Any) -> int:
        return size

    return await division_module.handled_in_parts(
        context, handler, request, unfinished or UnfinishedResponses(), size_of
    )


async def test_of_elements_that_name_the_same_thing_two_are_enough() -> None:
    topic = DeleteTopicsRequest.DeleteTopicState
    request = DeleteTopicsRequest(
        topics=[topic(name=f"t{n % 2}", topic_id=ZERO_UUID) for n in range(1000)], timeout_ms=1
    )
    (part,) = _DIVISIONS[DeleteTopicsRequest.API_KEY][0].parts(request)
    assert [each.name for each in part.topics] == ["t0", "t0", "t1", "t1"]
    assert _DIVISIONS[DeleteTopicsRequest.API_KEY][1].parts(request) == []


async def test_outer_elements_that_name_the_same_thing_are_joined_and_empty_ones_are_kept() -> None:
    topic = ListOffsetsRequest.ListOffsetsTopic
    part = ListOffsetsRequest.ListOffsetsPartition
    named = [("t", [0]), ("u", []), ("t", [1, 0])]
    topics = [
        topic(name=name, partitions=[part(partition_index=n, timestamp=-1) for n in indexes]) for name, indexes in named
    ]
    (divided,) = _DIVISIONS[ListOffsetsRequest.API_KEY][0].parts(ListOffsetsRequest(replica_id=-1, topics=topics))
    assert [(each.name, [p.partition_index for p in each.partitions]) for each in divided.topics] == [
        ("t", [0, 0, 1]),
        ("u", []),
    ]


async def test_a_request_that_changes_too_much_is_refused_as_a_whole() -> None:
    topic = partial(CreateTopicsRequest.CreatableTopic, replication_factor=1, assignments=[], configs=[])
    topics = [topic(name=f"t{n}", num_partitions=-1 if n else 10_000) for n in range(300)]
    request = CreateTopicsRequest(topics=topics, timeout_ms=1)
    request_in_parts = divided(request, _DIVISIONS[CreateTopicsRequest.API_KEY])
    assert request_in_parts is not None
    context: Any = SimpleNamespace(client=SimpleNamespace(has_disconnected=False))
    response: Any = await _handled(context, _never_called, request_in_parts)
    assert {each.error_code for each in response.topics} == {ErrorCode.POLICY_VIOLATION}
    assert [each.name for each in response.topics] == [each.name for each in request.topics]


async def test_partitions_of_topics_that_the_client_may_not_alter_do_not_count() -> None:
    """The refusal would reveal that the topic exists, and how many partitions it has."""
    more = CreatePartitionsRequest.CreatePartitionsTopic
    topics = [more(name=TOPIC, count=20_000, assignments=None)] + [
        more(name=f"t{number}", count=1, assignments=None) for number in range(300)
    ]
    request = CreatePartitionsRequest(topics=topics, timeout_ms=1)
    config = DynamicConfig(1, BrokerConfig.from_properties({}))
    context = context_of(CreatePartitionsRequest.API_KEY, 3)

    async def refused_by(authorizer: Authorizer) -> bool:
        authorization = Authorization(authorizer, AuditLog(lambda: 0.0))
        (division,) = divisions(config, metadata(), authorization)[CreatePartitionsRequest.API_KEY]
        return await in_turns(division.refusal(context, request)) is not None

    assert await refused_by(AllBut())
    assert not await refused_by(AllBut((ResourceType.TOPIC, Operation.ALTER)))


def _never_called(context: Any, request: Any) -> Any:
    raise AssertionError(request)


async def test_responses_that_wait_hold_up_no_part_and_an_error_of_the_whole_request_ends_it() -> None:
    partitions = [DeleteRecordsRequest.DeleteRecordsPartition(partition_index=n, offset=1) for n in range(4)]
    topics = [DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=partitions)]
    request = DeleteRecordsRequest(topics=topics, timeout_ms=1)
    division = replace(_DIVISIONS[DeleteRecordsRequest.API_KEY][0], size=2)
    parts = Divided(division, division.parts(request), request)
    context: Any = SimpleNamespace(client=SimpleNamespace(has_disconnected=False))
    waiting: list[asyncio.Future[Any]] = []

    def wait(context: Any, part: Any) -> Any:
        waiting.append(asyncio.get_running_loop().create_future())
        if len(waiting) == 2:
            for number, each in enumerate(waiting):
                each.set_result(_deleted(number))
        return waiting[-1]

    response: Any = await _handled(context, wait, parts)
    assert [[each.partition_index for each in topic.partitions] for topic in response.topics] == [[0, 1]]

    failed = OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND, topics=[])
    calls: list[Any] = []

    def fail(context: Any, part: Any) -> Any:
        calls.append(part)
        return failed

    assert await _handled(context, fail, parts) is failed
    assert len(calls) == 1


async def test_the_responses_in_the_making_hold_bounded_memory() -> None:
    """Twenty large requests at once, of different sizes, one of which fails and one of which is cancelled."""
    unfinished = UnfinishedResponses(bytes_max=5 << 20)
    held: list[int] = []

    def handle(context: Any, part: Any) -> Any:
        held.append(unfinished.bytes_held)
        if context.fails and len(held) > 20:
            raise ValueError("of one request")
        return APIS[DeleteGroupsRequest.API_KEY].response.blank()

    def request(parts: int) -> Divided:
        division = replace(_DIVISIONS[DeleteGroupsRequest.API_KEY][0], size=1)
        whole = DeleteGroupsRequest(groups_names=[f"g{n}" for n in range(parts)])
        return Divided(division, division.parts(whole), whole)

    contexts = [SimpleNamespace(client=SimpleNamespace(has_disconnected=False), fails=n == 3) for n in range(20)]
    tasks = [
        asyncio.create_task(_handled(context, handle, request(2 + number % 7), unfinished, 1 << 20))
        for number, context in enumerate(contexts)
    ]
    await asyncio.sleep(0)
    tasks[9].cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [number for number, end in enumerate(ends) if isinstance(end, BaseException)] == [3, 9]
    assert max(held) <= (5 + 2 * 8) << 20, "beyond the limit, the two responses that proceed"
    assert unfinished.bytes_held == 0


def _deleted(index: int) -> DeleteRecordsResponse:
    result = DeleteRecordsResponse.DeleteRecordsPartitionResult(partition_index=index, low_watermark=1)
    topic = DeleteRecordsResponse.DeleteRecordsTopicResult(name="t", partitions=[result])
    return DeleteRecordsResponse(topics=[topic])


async def test_a_broker_answers_a_divided_request_as_a_whole_one() -> None:
    """Both with real handlers: what is asked for is missing, so each element has its error."""
    names = [f"absent-{n}" for n in range(600)]
    with Broker() as broker:
        async with Client(broker.bootstrap_servers) as client:
            resources = [
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=2, resource_name=name, configuration_keys=None
                )
                for name in names
            ]
            described = await client.send(DescribeConfigsRequest(resources=resources))
            groups = await client.send(DeleteGroupsRequest(groups_names=names))
    assert [(each.resource_name, each.error_code) for each in described.results] == [
        (name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for name in names
    ]
    assert [each.group_id for each in groups.results] == names
