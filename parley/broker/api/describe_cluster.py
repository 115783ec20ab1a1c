"""DescribeCluster: the brokers, the controller and the cluster id, without topics (KIP-700)."""

from __future__ import annotations

from parley.broker.api.listener_view import ListenerView
from parley.broker.metadata.current import Metadata
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.security.authorization import EVERYONE_MAY, Authorization
from parley.broker.security.operations import NOT_REQUESTED
from parley.protocol.errors import ErrorCode
from parley.protocol.host_label import tagged_label
from parley.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse

BROKER_ENDPOINTS = 1
"""The endpoint type of brokers. Type 2 is a controller quorum (KIP-919), which Parley does not have."""


class DescribeClusterApi:
    """Handler of DescribeCluster."""

    def __init__(self, metadata: Metadata, authorization: Authorization = EVERYONE_MAY) -> None:
        self._metadata = metadata
        self._authorization = authorization

    def routes(self) -> dict[int, Handler]:
        return {DescribeClusterRequest.API_KEY: self.describe_cluster}

    def describe_cluster(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        """List the brokers with their addresses on the listener that received the request. Fenced brokers are included
        only if the request asks for them.

        The error code is MISMATCHED_ENDPOINT_TYPE if the request is about controllers, and UNSUPPORTED_ENDPOINT_TYPE
        for an unknown endpoint type.
        """
        image = self._metadata.image
        if request.endpoint_type != BROKER_ENDPOINTS:
            return DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
                if request.endpoint_type == 2
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="This listener belongs to a broker: use endpoint type 1.",
                endpoint_type=BROKER_ENDPOINTS,
                cluster_id=image.cluster_id,
                brokers=[],
            )
        return DescribeClusterResponse(
            error_code=ErrorCode.NONE,
            endpoint_type=BROKER_ENDPOINTS,
            cluster_id=image.cluster_id,
            controller_id=ListenerView(image, context.listener).controller_id,
            brokers=[
                DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=broker.broker_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=broker.rack,
                    is_fenced=broker.fenced,
                    unknown_tags=tagged_label(broker.host_label),
                )
                for broker in (image.brokers[i] for i in sorted(image.brokers))
                if (endpoint := broker.endpoint(context.listener)) is not None
                and (request.include_fenced_brokers or not broker.fenced)
            ],
            cluster_authorized_operations=(
                self._authorization.described_cluster_operations(context)
                if request.include_cluster_authorized_operations
                else NOT_REQUESTED
            ),
        )
