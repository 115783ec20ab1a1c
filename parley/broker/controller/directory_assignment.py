"""The decision about replicas' log directories, which a broker reports with AssignReplicasToDirs (KIP-858)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parley.broker.controller.brokers import check_broker_epoch
from parley.broker.controller.decision import Decision
from parley.broker.metadata.changes import Change, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import PartitionState
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode
from parley.protocol.uuids import UUID


@dataclass(frozen=True, slots=True)
class DirectoryAssignment:
    """A replica of the reporting broker, and the id of the log directory that holds it."""

    topic_id: UUID
    partition: int
    directory: UUID


def assign_directories(
    image: MetadataImage, broker_id: int, epoch: int, assignments: Sequence[DirectoryAssignment]
) -> Decision[list[ErrorCode]]:
    """Record which log directories hold a broker's replicas. The result has an error code for each assignment.

    The code is NONE if the assignment was recorded, LOG_DIR_NOT_FOUND if the broker has not registered the directory,
    UNKNOWN_TOPIC_ID or UNKNOWN_TOPIC_OR_PARTITION if the partition does not exist, and NOT_LEADER_OR_FOLLOWER if the
    broker is not one of its replicas.

    Raises STALE_BROKER_EPOCH unless the broker is registered under this epoch.
    """
    check_broker_epoch(image, broker_id, epoch)
    registered = image.brokers[broker_id].log_dirs
    changed: dict[tuple[str, int], PartitionState] = {}
    errors = []
    for assignment in assignments:
        topic = image.topic_names.get(assignment.topic_id)
        if topic is None:
            errors.append(ErrorCode.UNKNOWN_TOPIC_ID)
            continue
        key = (topic, assignment.partition)
        state = changed.get(key) or image.partition(*key)
        if state is None:
            errors.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif broker_id not in state.replicas:
            errors.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif registered and assignment.directory not in registered:
            errors.append(ErrorCode.LOG_DIR_NOT_FOUND)
        else:
            errors.append(ErrorCode.NONE)
            if state.directory(broker_id) != assignment.directory:
                changed[key] = _moved(state, broker_id, assignment.directory)
    changes: list[Change] = [PartitionChanged(topic, index, state) for (topic, index), state in changed.items()]
    return Decision(tuple(changes), errors)


def _moved(state: PartitionState, broker_id: int, directory: UUID) -> PartitionState:
    directories = [directory if each == broker_id else state.directory(each) for each in state.replicas]
    return replace(state, directories=tuple(directories), partition_epoch=state.partition_epoch + 1)
