"""Controlled shutdown: before a broker stops, the controller moves the partitions that it leads to other brokers."""

from __future__ import annotations

import logging
from collections.abc import Callable

from parley.broker.controller.brokers import hand_over_leadership
from parley.broker.controller.controller import Controller
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.metadata.current import Metadata
from parley.broker.network.peers import Peers
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.brokers import ControlledShutdownRequest, ControlledShutdownResponse

_log = logging.getLogger(__name__)


class ControlledShutdown:
    """Asks the controller, which may be this broker, to let this broker leave the cluster."""

    def __init__(
        self,
        broker_id: int,
        controller: Controller,
        metadata: Metadata,
        peers: Peers,
        *,
        broker_epoch: Callable[[], int],
        rules: RulesOf,
    ) -> None:
        self._broker_id = broker_id
        self._controller = controller
        self._metadata = metadata
        self._peers = peers
        self._broker_epoch = broker_epoch
        self._rules = rules

    async def leave(self, *, retries: int, pause_s: float) -> None:
        """Have the controller move this broker's leaderships, so that clients need not wait for an election when the
        broker stops.

        Does nothing if this broker is not registered and alive, or if no other broker is alive. After a successful
        attempt, waits at most ``pause_s`` until the metadata shows this broker as fenced. After a failed attempt,
        tries again up to ``retries`` times, each time after ``pause_s`` seconds or as soon as another controller is
        elected. Raises KafkaError if the last attempt fails.
        """
        own = self._broker_id
        for attempt in range(retries + 1):
            image = self._metadata.image
            known = image.brokers.get(own)
            if known is None or known.fenced or all(broker.broker_id == own for broker in image.live_brokers()):
                return
            try:
                await self._request()
                await self._metadata.until(lambda image: own not in image.live_broker_ids(), pause_s)
                return
            except KafkaError as error:
                if attempt == retries:
                    raise
                _log.info("retrying the controlled shutdown", extra={"reason": str(error)})
            epoch = image.controller_epoch
            await self._metadata.until(lambda image: image.controller_epoch != epoch, pause_s)  # noqa: B023

    async def _request(self) -> None:
        own, broker_epoch = self._broker_id, self._broker_epoch()
        if self._controller.is_active:
            await self._controller.submit(
                lambda image: hand_over_leadership(image, own, broker_epoch, self._rules), is_slow=True
            )
            return
        response: ControlledShutdownResponse = await self._peers.ask_controller(
            ControlledShutdownRequest(broker_id=own, broker_epoch=broker_epoch)
        )
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code))
