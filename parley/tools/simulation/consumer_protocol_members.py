"""Simulated consumers of the consumer protocol (KIP-848).

A seed decides whether a member subscribes by name or by regular expression, which assignor it requests, and whether the
client or the broker chooses its member id.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any, Final

from parley.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from parley.protocol.uuids import UUID
from parley.tools.simulation.client_invariants import Ledger
from parley.tools.simulation.consumer_group_ledger import ConsumerGroupLedger, MemberPlace
from parley.tools.simulation.group_processes import SESSION_S
from parley.tools.simulation.reconciling_members import HEARTBEAT_S, LEAVE, REBALANCE_S, ReconcilingMember

CONSUMER_GROUP: Final = "consumer-group"
PROPERTIES: Final = {
    **{f"group.consumer.{each}session.timeout.ms": str(int(SESSION_S * 1000)) for each in ("", "min.")},
    **{f"group.consumer.{each}heartbeat.interval.ms": str(int(HEARTBEAT_S * 1000)) for each in ("", "min.")},
}
"""Broker settings that make sessions as short as those of classic groups."""
_ID_OF_CLIENT: Final = 1
"""The first version of ConsumerGroupHeartbeat in which the client chooses its id, and may send regular expressions."""
_LEAVE_FOR_NOW: Final = -2


class ConsumerProtocolMember(ReconcilingMember):
    """The process of a consumer that uses the consumer protocol."""

    def __init__(
        self,
        name: str,
        bootstrap: Iterable[tuple[str, int]],
        ledger: Ledger,
        groups: ConsumerGroupLedger,
        rng: Random,
        instance_id: str | None,
    ) -> None:
        version = rng.choice((0, _ID_OF_CLIENT))
        place = MemberPlace(name, str(UUID(int=rng.getrandbits(128))) if version else "", instance_id, 0)
        super().__init__(CONSUMER_GROUP, bootstrap, ledger, groups, rng, place)
        self.version = version
        self._regex = "re[a-c]ords" if version and rng.random() < 0.4 else None
        self._assignor = rng.choice((None, "uniform", "range"))
        self._topic_id = UUID(int=0)

    def request(self, topic: str, *, is_full: bool, has_changed: bool) -> ConsumerGroupHeartbeatRequest:
        request = self._with_epoch(self.place.epoch)
        if is_full:
            request.rebalance_timeout_ms = int(REBALANCE_S * 1000)
            request.subscribed_topic_names = [] if self._regex else [topic]
            request.subscribed_topic_regex = self._regex
            request.server_assignor = self._assignor
        if has_changed:
            request.topic_partitions = [
                ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=self._topic_id, partitions=sorted(self.held))
            ][: len(self.held)]
        return request

    def _with_epoch(self, epoch: int) -> ConsumerGroupHeartbeatRequest:
        place = self.place
        return ConsumerGroupHeartbeatRequest(
            group_id=CONSUMER_GROUP, member_id=place.member_id, member_epoch=epoch, instance_id=place.instance_id
        )

    def assigned_in(self, answer: Any) -> frozenset[int] | None:
        if answer.assignment is None:
            return None
        found = set()
        for each in answer.assignment.topic_partitions:
            self._topic_id = each.topic_id
            found.update(each.partitions)
        return frozenset(found)

    def goodbye(self) -> ConsumerGroupHeartbeatRequest:
        """Return the heartbeat with which the member leaves the group. A static member usually leaves temporarily."""
        leaves_for_now = self.place.instance_id is not None and (not self.is_newest or self.rng.random() < 0.7)
        return self._with_epoch(_LEAVE_FOR_NOW if leaves_for_now else LEAVE)

    def abandoned(self) -> str:
        return self.place.member_id if self.version else ""
