"""ElectLeaders and the requests for reassignments, as decoded from the wire."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parley.broker.api import elect_leaders as elections_module
from parley.broker.api.elect_leaders import ElectLeadersApi
from parley.broker.api.reassignment import ReassignmentApi
from parley.broker.controller.broker_reports import Replica
from parley.broker.controller.elections.unclean_recovery import UncleanRecovery
from parley.broker.metadata.types import BrokerRegistration, PartitionState
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.elections import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
)
from tests.broker.api.bench import context
from tests.broker.controller.clusters import TOPIC, DirectController, balanced, image_with

AWAY = PartitionState((1, 2, 3), (2, 1), 2, 5, 7)
HOME = PartitionState((1, 2, 3), (2, 1), 1, 5, 7)

Topic = ElectLeadersRequest.TopicPartitions
Moving = AlterPartitionReassignmentsRequest.ReassignableTopic
MovingPartition = AlterPartitionReassignmentsRequest.ReassignablePartition


@pytest.fixture
def controller() -> DirectController:
    return DirectController(image_with(AWAY, HOME))


async def no_report(broker: BrokerRegistration, wanted: Sequence[Replica] | None) -> None:
    """Stand for a broker that does not respond."""


async def elect(
    controller: DirectController, version: int, wanted: list[Topic] | None, kind: int = 0
) -> ElectLeadersResponse:
    recovery = UncleanRecovery(controller.metadata, no_report, balanced)
    api = ElectLeadersApi(controller, recovery, balanced)  # type: ignore[arg-type]
    request = ElectLeadersRequest(election_type=kind, topic_partitions=wanted)
    return await api.elect_leaders(context(version), request)


def codes(answer: ElectLeadersResponse) -> dict[tuple[str, int], int]:
    return {
        (topic.topic, each.partition_id): each.error_code
        for topic in answer.replica_election_results
        for each in topic.partition_result
    }


@pytest.mark.parametrize("version", range(3))
async def test_each_partition_has_its_outcome(controller: DirectController, version: int) -> None:
    wanted = [Topic(topic=TOPIC, partitions=[0, 1, 0]), Topic(topic="x", partitions=[4])]
    answer = await elect(controller, version, wanted)
    assert answer.error_code == ErrorCode.NONE
    assert codes(answer) == {
        (TOPIC, 0): ErrorCode.NONE,
        (TOPIC, 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("x", 4): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


async def test_all_partitions_at_once(controller: DirectController) -> None:
    assert codes(await elect(controller, 2, None)) == {(TOPIC, 0): ErrorCode.NONE}


@pytest.mark.parametrize("all_of_them", [True, False])
async def test_many_are_elected_in_several_decisions(all_of_them: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elections_module, "ELECTED_AT_ONCE", 3)
    controller = DirectController(image_with(*[AWAY] * 8, HOME))
    wanted = None if all_of_them else [Topic(topic=TOPIC, partitions=list(range(8)))]
    assert codes(await elect(controller, 2, wanted)) == {(TOPIC, index): ErrorCode.NONE for index in range(8)}
    assert [state.leader for state in controller.metadata.image.topics[TOPIC].partitions] == [1] * 9


async def test_there_are_two_kinds_of_election(controller: DirectController) -> None:
    answer = await elect(controller, 2, None, kind=2)
    assert (answer.error_code, answer.replica_election_results) == (ErrorCode.INVALID_REQUEST, [])
    assert codes(await elect(controller, 2, [Topic(topic=TOPIC, partitions=[0])], kind=1)) == {
        (TOPIC, 0): ErrorCode.ELECTION_NOT_NEEDED
    }


async def test_a_broker_that_is_not_the_controller_elects_no_leader(controller: DirectController) -> None:
    controller.is_active = False
    wanted = [Topic(topic=TOPIC, partitions=[0])]
    assert codes(await elect(controller, 0, wanted)) == {(TOPIC, 0): ErrorCode.NOT_CONTROLLER}
    assert (await elect(controller, 1, wanted)).error_code == ErrorCode.NOT_CONTROLLER


async def move(
    controller: DirectController, *partitions: MovingPartition, version: int = 1, factor_may_change: bool = True
) -> AlterPartitionReassignmentsResponse:
    api = ReassignmentApi(controller, balanced)  # type: ignore[arg-type]
    request = AlterPartitionReassignmentsRequest(
        topics=[Moving(name=TOPIC, partitions=list(partitions))], allow_replication_factor_change=factor_may_change
    )
    answer = await api.move(context(version), request)
    assert isinstance(answer, AlterPartitionReassignmentsResponse)
    return answer


def move_codes(answer: AlterPartitionReassignmentsResponse) -> dict[int, int]:
    return {each.partition_index: each.error_code for topic in answer.responses for each in topic.partitions}


async def test_moves_begin_are_shown_and_stop(controller: DirectController) -> None:
    api = ReassignmentApi(controller, balanced)  # type: ignore[arg-type]
    answer = await move(
        controller,
        MovingPartition(partition_index=0, replicas=[4, 1]),
        MovingPartition(partition_index=1, replicas=None),
    )
    assert move_codes(answer) == {0: ErrorCode.NONE, 1: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}
    (topic,) = (await api.list_moves(context(0), ListPartitionReassignmentsRequest(topics=None))).topics
    (shown,) = topic.partitions
    assert (topic.name, shown.replicas) == (TOPIC, [4, 1, 2, 3])
    assert (shown.adding_replicas, shown.removing_replicas) == ([4], [2, 3])
    named = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(name=TOPIC, partition_indexes=[1, 1])
    assert (await api.list_moves(context(0), ListPartitionReassignmentsRequest(topics=[named]))).topics == []
    assert move_codes(await move(controller, MovingPartition(partition_index=0, replicas=None))) == {0: ErrorCode.NONE}
    assert (await api.list_moves(context(0), ListPartitionReassignmentsRequest(topics=None))).topics == []


async def test_a_partition_is_moved_to_one_place(controller: DirectController) -> None:
    partition = MovingPartition(partition_index=0, replicas=[4, 1])
    answer = await move(controller, partition, MovingPartition(partition_index=0, replicas=[5, 1]))
    assert move_codes(answer) == {0: ErrorCode.INVALID_REQUEST}
    assert controller.metadata.image.partition(TOPIC, 0) == AWAY


async def test_the_number_of_replicas_can_be_held(controller: DirectController) -> None:
    answer = await move(controller, MovingPartition(partition_index=0, replicas=[4, 1]), factor_may_change=False)
    assert move_codes(answer) == {0: ErrorCode.INVALID_REPLICATION_FACTOR}
    assert answer.allow_replication_factor_change is False


async def test_a_broker_that_is_not_the_controller_moves_nothing(controller: DirectController) -> None:
    controller.is_active = False
    api = ReassignmentApi(controller, balanced)  # type: ignore[arg-type]
    refused = await move(controller, *(MovingPartition(partition_index=index, replicas=[4, 1]) for index in (1, 0, 1)))
    assert refused.error_code == ErrorCode.NOT_CONTROLLER
    assert move_codes(refused) == {0: ErrorCode.NOT_CONTROLLER, 1: ErrorCode.NOT_CONTROLLER}
    answer = await api.list_moves(context(0), ListPartitionReassignmentsRequest(topics=None))
    assert answer.error_code == ErrorCode.NOT_CONTROLLER
