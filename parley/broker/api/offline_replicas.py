"""ReportOfflineReplicas: a broker that lives has lost a disk. Only the controller answers."""

from __future__ import annotations

from parley.broker.controller.brokers import UncleanAllowed, replicas_lost
from parley.broker.controller.controller import Controller
from parley.broker.network.dispatch import Handler, RequestContext
from parley.protocol.errors import KafkaError
from parley.protocol.messages.cluster_metadata import ReportOfflineReplicasRequest, ReportOfflineReplicasResponse


class OfflineReplicasApi:
    """The controller's ear for failed disks."""

    def __init__(self, controller: Controller, unclean: UncleanAllowed) -> None:
        self._controller = controller
        self._unclean = unclean

    def routes(self) -> dict[int, Handler]:
        return {ReportOfflineReplicasRequest.API_KEY: self.report_offline_replicas}

    async def report_offline_replicas(
        self, context: RequestContext, request: ReportOfflineReplicasRequest
    ) -> ReportOfflineReplicasResponse:
        """Move leaders away from the failed disk, and take its replicas out of the ISRs."""
        replicas = [(topic.topic_id, index) for topic in request.topics for index in topic.partitions]
        try:
            await self._controller.submit(
                lambda image: replicas_lost(image, request.broker_id, request.broker_epoch, replicas, self._unclean)
            )
        except KafkaError as error:
            return ReportOfflineReplicasResponse(error_code=error.code, error_message=error.message)
        return ReportOfflineReplicasResponse()
