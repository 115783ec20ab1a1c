"""How the dispatcher divides the requests of each API into parts.

An API is not in the table if its elements depend on each other (a fetch session, the partitions of a transaction, the
assignments of a group), if its requests contain no list, or if its handler itself works in turns (Produce, Metadata,
DescribeTopicPartitions). The ``size`` of a division, the number of elements in a part, is smaller if a handler needs
more than about 20 microseconds per element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeAlias, TypeVar

from parley.broker.api.authorization.refused_requests import refuse
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.controller.acls import too_many_acls
from parley.broker.controller.client_quotas import too_many_quotas
from parley.broker.controller.topics import requested_increase, requested_partitions, too_many_partitions
from parley.broker.metadata.current import Metadata
from parley.broker.network.division import Division, Level, in_order, named
from parley.broker.network.request_context import RequestContext
from parley.broker.runtime.steps import Steps, each_of
from parley.broker.security.authorization import EVERYONE_MAY, Authorization
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import KafkaError
from parley.protocol.messages import APIS
from parley.protocol.messages.acls import CreateAclsRequest
from parley.protocol.messages.quotas import AlterClientQuotasRequest
from parley.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest

_COSTLY: Final = 100
"""The number of elements in a part if each takes about 100 microseconds, because the controller stores it or it has
dozens of entries."""


_COUNTED_IN_A_STEP: Final = 500
"""The number of elements whose sizes are added up before the event loop serves other clients. That takes a millisecond
or two."""
T = TypeVar("T")

_PARTITIONS: Final = named("partitions", "partition_index")
_INDEXES: Final = named("partition_indexes")
_RESULTS: Final = in_order("partitions")
_OFFSETS_OF_A_GROUP: Final = named("topics", "name", "topic_id")
_SHARE_STATE: Final = Division(
    (named("topics", "topic_id"), named("partitions", "partition")), (named("results", "topic_id"), _RESULTS)
)


def _of_topics(name: str = "name", below: Level = _PARTITIONS, **options: Any) -> Division:
    """Return the division of requests that list partitions by topic, and whose responses have the same structure."""
    return Division((named("topics", name), below), (named("topics", name), _RESULTS), **options)


def _listed(field: str, into: str, *names: str, **options: Any) -> Division:
    """Return the division of requests whose elements form one flat list."""
    return Division((named(field, *names),), (in_order(into),), **options)


_DIVISIONS: Final[dict[str, Division | tuple[Division, ...]]] = {
    # Partitions
    "ListOffsets": _of_topics(only_reads=True),
    "OffsetForLeaderEpoch": _of_topics("topic", named("partitions", "partition"), only_reads=True),
    "DescribeProducers": _of_topics(below=_INDEXES, only_reads=True),
    "DeleteRecords": _of_topics(),
    "AlterReplicaLogDirs": Division(
        (named("dirs", "path"), named("topics", "name"), named("partitions")),
        (named("results", "topic_name"), _RESULTS),
    ),
    "WriteTxnMarkers": Division(
        (in_order("markers"), named("topics", "name"), _INDEXES),
        (named("markers", "producer_id"), named("topics", "name"), _RESULTS),
        size=_COSTLY,
    ),
    # Decisions of the controller
    "DeleteAcls": Division((in_order("filters"),), (in_order("filter_results"),), size=_COSTLY),
    "DeleteTopics": (
        _listed("topics", "responses", "name", "topic_id", size=_COSTLY),
        _listed("topic_names", "responses", size=_COSTLY),  # before version 6
    ),
    "AlterPartitionReassignments": Division(
        (named("topics", "name"), _PARTITIONS), (named("responses", "name"), _RESULTS)
    ),
    "ListPartitionReassignments": _of_topics(below=_INDEXES, only_reads=True),
    "ElectLeaders": Division(
        (named("topic_partitions", "topic"), named("partitions")),
        (named("replica_election_results", "topic"), in_order("partition_result")),
    ),
    "DescribeConfigs": Division(
        (named("resources", "resource_type", "resource_name", needs_all=True),),  # each with its keys
        (in_order("results"),),
        size=_COSTLY,
        only_reads=True,
    ),
    "AlterConfigs": _listed("resources", "responses", "resource_type", "resource_name", size=_COSTLY),
    "IncrementalAlterConfigs": _listed("resources", "responses", "resource_type", "resource_name", size=_COSTLY),
    "DescribeUserScramCredentials": _listed("users", "results", "name", only_reads=True),
    "AlterUserScramCredentials": Division(
        (Level(("deletions", "upsertions"), ("name",)),), (in_order("results"),), size=_COSTLY
    ),
    # Groups and transactions
    "FindCoordinator": _listed("coordinator_keys", "coordinators", only_reads=True),
    "LeaveGroup": Division((in_order("members"),), (in_order("members"),)),
    "DescribeGroups": _listed("groups", "groups", only_reads=True),
    "DeleteGroups": _listed("groups_names", "results"),
    "ConsumerGroupDescribe": _listed("group_ids", "groups", only_reads=True),
    "ShareGroupDescribe": _listed("group_ids", "groups", only_reads=True),
    "StreamsGroupDescribe": _listed("group_ids", "groups", only_reads=True),
    "OffsetCommit": Division((_OFFSETS_OF_A_GROUP, _PARTITIONS), (_OFFSETS_OF_A_GROUP, _RESULTS)),
    "TxnOffsetCommit": _of_topics(),
    "OffsetDelete": _of_topics(),
    "OffsetFetch": (
        Division(
            (named("groups", "group_id"), _OFFSETS_OF_A_GROUP, _INDEXES),
            (named("groups", "group_id"), _OFFSETS_OF_A_GROUP, _RESULTS),
            only_reads=True,
        ),
        _of_topics(below=_INDEXES, only_reads=True),  # before version 8
    ),
    "DescribeTransactions": _listed("transactional_ids", "transaction_states", only_reads=True),
    "DescribeShareGroupOffsets": Division(
        (named("groups", "group_id"), named("topics", "topic_name"), named("partitions")),
        (named("groups", "group_id"), named("topics", "topic_name"), _RESULTS),
        only_reads=True,
    ),
    "AlterShareGroupOffsets": Division(
        (named("topics", "topic_name"), _PARTITIONS), (named("responses", "topic_name"), _RESULTS)
    ),
    "DeleteShareGroupOffsets": _listed("topics", "responses", "topic_name"),
    "InitializeShareGroupState": _SHARE_STATE,
    "ReadShareGroupState": replace(_SHARE_STATE, only_reads=True),
    "WriteShareGroupState": _SHARE_STATE,
    "DeleteShareGroupState": _SHARE_STATE,
    "ReadShareGroupStateSummary": replace(_SHARE_STATE, only_reads=True),
}


# --- Requests that are refused as a whole if they change too much ---

_Refusal: TypeAlias = Steps[KafkaError | None]


def _sum_of(elements: Iterable[T], size_of: Callable[[T], int]) -> Steps[int]:
    total = 0

    def count(element: T) -> None:
        nonlocal total
        total += size_of(element)

    yield from each_of(elements, _COUNTED_IN_A_STEP, count)
    return total


def _refuses_too_much(config: DynamicConfig, metadata: Metadata, authorization: Authorization) -> dict[str, Division]:
    def too_many_topics(context: RequestContext, request: CreateTopicsRequest) -> _Refusal:
        usual = config().num_partitions
        total = yield from _sum_of(
            request.topics, lambda each: requested_partitions(each.assignments, each.num_partitions, usual)
        )
        return too_many_partitions(total)

    def too_many_more(context: RequestContext, request: CreatePartitionsRequest) -> _Refusal:
        image, may_alter = metadata.image, authorization.probe(context, Operation.ALTER, ResourceType.TOPIC)
        total = yield from _sum_of(
            request.topics, lambda each: requested_increase(image, each.name, each.count) if may_alter(each.name) else 0
        )
        return too_many_partitions(total)

    def too_many_creations(context: RequestContext, request: CreateAclsRequest) -> _Refusal:
        yield from ()
        return too_many_acls(len(request.creations))

    def too_many_alterations(context: RequestContext, request: AlterClientQuotasRequest) -> _Refusal:
        return too_many_quotas((yield from _sum_of(request.entries, lambda each: len(each.ops))))

    def bounded(field: str, into: str, refusal: Callable[[Any, Any], _Refusal], *names: str) -> Division:
        level = named(field, *names) if names else in_order(field)
        return Division((level,), (in_order(into),), size=_COSTLY, refusal=refusal, refuse=refuse)

    return {
        "CreateTopics": bounded("topics", "topics", too_many_topics, "name"),
        "CreatePartitions": bounded("topics", "results", too_many_more, "name"),
        "CreateAcls": bounded("creations", "results", too_many_creations),
        "AlterClientQuotas": bounded("entries", "entries", too_many_alterations),
    }


def divisions(
    config: DynamicConfig, metadata: Metadata, authorization: Authorization = EVERYONE_MAY
) -> dict[int, tuple[Division, ...]]:
    """Return the divisions of each API, by API key. A request is divided by the first division whose lists it
    contains."""
    table = {**_DIVISIONS, **_refuses_too_much(config, metadata, authorization)}
    keys = {api.name: key for key, api in APIS.items()}
    return {keys[name]: each if isinstance(each, tuple) else (each,) for name, each in table.items()}
