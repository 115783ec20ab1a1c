"""Requests that report a change in a broker's state. Only the controller handles them.

ControlledShutdown (the broker is about to stop), ReportOfflineReplicas (one of its disks has failed),
HandOverLeadership (some of its logs are damaged), and UnregisterBroker (an operator removes a stopped broker from the
metadata).
"""

from __future__ import annotations

from parley.broker.controller.brokers import (
    hand_over_leadership,
    take_replicas_offline,
    unregister_broker,
)
from parley.broker.controller.controller import Controller
from parley.broker.controller.elections.damaged_replicas import elect_other_leaders, remove_damaged_replicas
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.network.request_context import Handler, RequestContext
from parley.protocol.errors import KafkaError
from parley.protocol.messages.brokers import ControlledShutdownRequest, ControlledShutdownResponse
from parley.protocol.messages.cluster_metadata import (
    HandOverLeadershipRequest,
    HandOverLeadershipResponse,
    ReportOfflineReplicasRequest,
    ReportOfflineReplicasResponse,
)
from parley.protocol.messages.quorum import UnregisterBrokerRequest, UnregisterBrokerResponse


class BrokerLifecycleApi:
    """Handlers of requests about brokers that leave the cluster or lose disks."""

    def __init__(self, controller: Controller, rules: RulesOf) -> None:
        self._controller = controller
        self._rules = rules

    def routes(self) -> dict[int, Handler]:
        return {
            ControlledShutdownRequest.API_KEY: self.controlled_shutdown,
            ReportOfflineReplicasRequest.API_KEY: self.report_offline_replicas,
            HandOverLeadershipRequest.API_KEY: self.hand_over_leadership,
            UnregisterBrokerRequest.API_KEY: self.unregister_broker,
        }

    async def controlled_shutdown(
        self, context: RequestContext, request: ControlledShutdownRequest
    ) -> ControlledShutdownResponse:
        """Move leadership away from the broker and fence it. The response lists the partitions that no other replica
        can lead, or contains an error code, for example NOT_CONTROLLER, BROKER_ID_NOT_REGISTERED or
        STALE_BROKER_EPOCH."""
        try:
            remaining = await self._controller.submit(
                lambda image: hand_over_leadership(image, request.broker_id, request.broker_epoch, self._rules),
                is_slow=True,
            )
        except KafkaError as error:
            return ControlledShutdownResponse(error_code=error.code, remaining_partitions=[])
        return ControlledShutdownResponse(
            remaining_partitions=[
                ControlledShutdownResponse.RemainingPartition(topic_name=topic, partition_index=index)
                for topic, index in remaining
            ]
        )

    async def report_offline_replicas(
        self, context: RequestContext, request: ReportOfflineReplicasRequest
    ) -> ReportOfflineReplicasResponse:
        """Move leadership away from the sender's replicas on the failed disk, and remove these replicas from the ISRs.

        The response contains an error code if this fails, for example NOT_CONTROLLER or STALE_BROKER_EPOCH.
        """
        replicas = [(topic.topic_id, index) for topic in request.topics for index in topic.partitions]
        try:
            await self._controller.submit(
                lambda image: take_replicas_offline(
                    image, request.broker_id, request.broker_epoch, replicas, self._rules
                )
            )
        except KafkaError as error:
            return ReportOfflineReplicasResponse(error_code=error.code, error_message=error.message)
        return ReportOfflineReplicasResponse()

    async def hand_over_leadership(
        self, context: RequestContext, request: HandOverLeadershipRequest
    ) -> HandOverLeadershipResponse:
        """Elect other leaders for the partitions whose logs are damaged on the sender. If ``starts_over``, remove the
        sender from the ISRs of these partitions instead.

        A partition for which this is not possible stays as it is. The response contains an error code if the whole
        request fails, for example NOT_CONTROLLER or STALE_BROKER_EPOCH.
        """
        replicas = [(topic.topic_id, index) for topic in request.topics for index in topic.partitions]
        decide = remove_damaged_replicas if request.starts_over else elect_other_leaders
        try:
            await self._controller.submit(
                lambda image: decide(image, request.broker_id, request.broker_epoch, replicas, self._rules)
            )
        except KafkaError as error:
            return HandOverLeadershipResponse(error_code=error.code, error_message=error.message)
        return HandOverLeadershipResponse()

    async def unregister_broker(
        self, context: RequestContext, request: UnregisterBrokerRequest
    ) -> UnregisterBrokerResponse:
        """Remove a stopped broker from the metadata. The broker remains a replica of its partitions until they are
        reassigned.

        The response contains an error code if this fails, for example NOT_CONTROLLER, BROKER_ID_NOT_REGISTERED for an
        unknown broker, or INVALID_REQUEST for a live broker.
        """
        try:
            await self._controller.submit(lambda image: unregister_broker(image, request.broker_id))
        except KafkaError as error:
            return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
        return UnregisterBrokerResponse()
