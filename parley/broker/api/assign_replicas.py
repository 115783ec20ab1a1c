"""AssignReplicasToDirs: a broker reports the log directory of each of its replicas to the controller (KIP-858)."""

from __future__ import annotations

from collections.abc import Iterator

from parley.broker.controller.controller import Controller
from parley.broker.controller.directory_assignment import DirectoryAssignment, assign_directories
from parley.broker.network.request_context import Handler, RequestContext
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.replication import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse

_Directory = AssignReplicasToDirsResponse.DirectoryData
_Topic = AssignReplicasToDirsResponse.TopicData
_Partition = AssignReplicasToDirsResponse.PartitionData


class AssignReplicasApi:
    """Handler of AssignReplicasToDirs."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def routes(self) -> dict[int, Handler]:
        return {AssignReplicasToDirsRequest.API_KEY: self.assign_replicas_to_dirs}

    async def assign_replicas_to_dirs(
        self, context: RequestContext, request: AssignReplicasToDirsRequest
    ) -> AssignReplicasToDirsResponse:
        """Store which log directory of the sender contains each replica. Each assignment succeeds or fails
        independently.

        For an error of the whole request, the response contains only an error code, for example NOT_CONTROLLER, or
        STALE_BROKER_EPOCH if the sender is not registered under the epoch in the request.
        """
        assignments = list(_assignments(request))
        try:
            errors = await self._controller.submit(
                lambda image: assign_directories(image, request.broker_id, request.broker_epoch, assignments)
            )
        except KafkaError as error:
            return AssignReplicasToDirsResponse(error_code=error.code, directories=[])
        return _response(request, iter(errors))


def _assignments(request: AssignReplicasToDirsRequest) -> Iterator[DirectoryAssignment]:
    for directory in request.directories:
        for topic in directory.topics:
            for partition in topic.partitions:
                yield DirectoryAssignment(topic.topic_id, partition.partition_index, directory.id)


def _response(request: AssignReplicasToDirsRequest, errors: Iterator[ErrorCode]) -> AssignReplicasToDirsResponse:
    return AssignReplicasToDirsResponse(
        directories=[
            _Directory(
                id=directory.id,
                topics=[
                    _Topic(
                        topic_id=topic.topic_id,
                        partitions=[
                            _Partition(partition_index=partition.partition_index, error_code=next(errors))
                            for partition in topic.partitions
                        ],
                    )
                    for topic in directory.topics
                ],
            )
            for directory in request.directories
        ]
    )
