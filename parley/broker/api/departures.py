"""ControlledShutdown, UnregisterBroker: a broker stops in good order, or is forgotten. Only the controller answers."""

from __future__ import annotations

from parley.broker.controller.brokers import UncleanAllowed
from parley.broker.controller.controller import Controller
from parley.broker.controller.departures import broker_leaving, unregister_broker
from parley.broker.network.dispatch import Handler, RequestContext
from parley.protocol.errors import KafkaError
from parley.protocol.messages.brokers import ControlledShutdownRequest, ControlledShutdownResponse
from parley.protocol.messages.quorum import UnregisterBrokerRequest, UnregisterBrokerResponse


class DeparturesApi:
    """Brokers leave."""

    def __init__(self, controller: Controller, unclean: UncleanAllowed) -> None:
        self._controller = controller
        self._unclean = unclean

    def routes(self) -> dict[int, Handler]:
        return {
            ControlledShutdownRequest.API_KEY: self.controlled_shutdown,
            UnregisterBrokerRequest.API_KEY: self.unregister_broker,
        }

    async def controlled_shutdown(
        self, context: RequestContext, request: ControlledShutdownRequest
    ) -> ControlledShutdownResponse:
        """Move the broker's leaders away and fence it; what remains has no other replica that could lead."""
        try:
            remaining = await self._controller.submit(
                lambda image: broker_leaving(image, request.broker_id, request.broker_epoch, self._unclean)
            )
        except KafkaError as error:
            return ControlledShutdownResponse(error_code=error.code, remaining_partitions=[])
        return ControlledShutdownResponse(
            remaining_partitions=[
                ControlledShutdownResponse.RemainingPartition(topic_name=topic, partition_index=index)
                for topic, index in remaining
            ]
        )

    async def unregister_broker(
        self, context: RequestContext, request: UnregisterBrokerRequest
    ) -> UnregisterBrokerResponse:
        """Forget a broker that is gone."""
        try:
            await self._controller.submit(lambda image: unregister_broker(image, request.broker_id))
        except KafkaError as error:
            return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
        return UnregisterBrokerResponse()
