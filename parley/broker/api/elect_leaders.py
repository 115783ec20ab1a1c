"""ElectLeaders: an administrator requests a preferred or an unclean leader election (KIP-183, KIP-460).

Only the controller handles this request. ``timeout_ms`` is not needed: the response is sent when the leaders are
elected. Large requests are split into several decisions, so that no decision blocks the broker for long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from parley.broker.api.requested_names import once
from parley.broker.controller.controller import Controller
from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.controller.elections.preferred_elections import elect_preferred_leaders
from parley.broker.controller.elections.requested_elections import ElectionOutcome, ElectionType, needing_election
from parley.broker.controller.elections.unclean_recovery import UncleanRecovery
from parley.broker.network.request_context import Handler, RequestContext
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.elections import ElectLeadersRequest, ElectLeadersResponse

ERROR_OF_ALL_SINCE = 1
ELECTED_AT_ONCE = 1_000
"""The maximum number of partitions in one decision, which takes the controller about 10 ms."""


class ElectLeadersApi:
    """Handler of ElectLeaders."""

    def __init__(self, controller: Controller, recovery: UncleanRecovery, rules: RulesOf) -> None:
        self._controller = controller
        self._recovery = recovery
        self._rules = rules

    def routes(self) -> dict[int, Handler]:
        return {ElectLeadersRequest.API_KEY: self.elect_leaders}

    async def elect_leaders(self, context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """Elect leaders of the requested partitions or, if none are named, of all partitions that need an election.

        Each election succeeds or fails independently. The response lists all requested partitions; if none are named,
        only those that needed an election. An error of the whole request, such as NOT_CONTROLLER, is the response's
        error code; version 0 has none, and returns the error for each requested partition.
        """
        wanted = None if request.topic_partitions is None else _named(request.topic_partitions)
        try:
            kind = _kind(request.election_type)
            outcomes = await self._elected(kind, wanted)
        except KafkaError as error:
            if context.api_version >= ERROR_OF_ALL_SINCE:
                return ElectLeadersResponse(error_code=error.code, replica_election_results=[])
            outcomes = [ElectionOutcome(topic, index, error) for topic, index in wanted or ()]
        return ElectLeadersResponse(replica_election_results=_results(outcomes))

    async def _elected(self, kind: ElectionType, wanted: list[tuple[str, int]] | None) -> list[ElectionOutcome]:
        """Elect leaders in slices, so that the controller can make other decisions in between. ``wanted`` is None for
        all partitions that need an election."""
        named = wanted
        if named is None:
            named = await self._controller.submit(lambda image: Decision((), list(needing_election(image, kind))))
        outcomes: list[ElectionOutcome] = []
        for begin in range(0, max(1, len(named)), ELECTED_AT_ONCE):
            outcomes += await self._elected_together(kind, named[begin : begin + ELECTED_AT_ONCE])
        return [each for each in outcomes if wanted is not None or not each.is_needless]

    async def _elected_together(self, kind: ElectionType, wanted: list[tuple[str, int]]) -> list[ElectionOutcome]:
        if kind is ElectionType.UNCLEAN:
            return await self._recovery.elect(self._controller, wanted)
        return await self._controller.submit(lambda image: elect_preferred_leaders(image, wanted, self._rules))


def _kind(election_type: int) -> ElectionType:
    try:
        return ElectionType(election_type)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}.") from None


def _named(topics: Iterable[ElectLeadersRequest.TopicPartitions]) -> list[tuple[str, int]]:
    named = once(((topic.topic, topic.partitions) for topic in topics), lambda index: index)
    return [(topic, index) for topic, indexes in named.items() for index in indexes]


def _results(outcomes: Iterable[ElectionOutcome]) -> list[ElectLeadersResponse.ReplicaElectionResult]:
    by_topic: defaultdict[str, list[ElectLeadersResponse.PartitionResult]] = defaultdict(list)
    for outcome in outcomes:
        error = outcome.error
        by_topic[outcome.topic].append(
            ElectLeadersResponse.PartitionResult(
                partition_id=outcome.partition,
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else error.message,
            )
        )
    return [
        ElectLeadersResponse.ReplicaElectionResult(topic=topic, partition_result=results)
        for topic, results in by_topic.items()
    ]
