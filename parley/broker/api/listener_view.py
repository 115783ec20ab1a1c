"""The cluster as a client sees it through its listener: which brokers are alive and reachable there."""

from __future__ import annotations

from collections.abc import Callable

from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, PartitionState
from parley.protocol.errors import ErrorCode


class ListenerView:
    """A metadata image as the clients of one listener see it."""

    def __init__(
        self,
        image: MetadataImage,
        listener: str,
        *,
        without_listener: ErrorCode = ErrorCode.LISTENER_NOT_FOUND,
        lacks_log: Callable[[str, int], bool] = lambda topic, index: False,
    ) -> None:
        """``without_listener`` is the error for a partition whose leader does not have this listener (KIP-207).

        ``lacks_log(topic, index)`` returns True if this broker leads the partition but has not opened its log yet.
        """
        alive = image.live_brokers()
        self._alive = {broker.broker_id for broker in alive}
        self._reachable = {broker.broker_id for broker in alive if broker.endpoint(listener) is not None}
        self._without_listener = without_listener
        self._lacks_log = lacks_log
        self._controller = image.controller_id

    @property
    def controller_id(self) -> int:
        """The controller's id if clients can reach the controller. Otherwise the id of a reachable broker, because
        every broker forwards requests to the controller, or -1 if there is none."""
        if self._controller in self._reachable:
            return self._controller
        return min(self._reachable, default=-1)

    def leader(self, topic: str, index: int, state: PartitionState) -> tuple[int, ErrorCode]:
        """Return the leader and NONE if the client can use the leader; otherwise -1 and the error to return."""
        if self._lacks_log(topic, index):
            return NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
        if state.leader in self._reachable:
            return state.leader, ErrorCode.NONE
        return NO_LEADER, self._without_listener if state.leader in self._alive else ErrorCode.LEADER_NOT_AVAILABLE

    def offline(self, state: PartitionState) -> list[int]:
        """Return the replicas that are down or unreachable through this listener."""
        return [broker for broker in state.replicas if broker not in self._reachable]
