"""A share partition (a partition as one share group sees it), and its state at the share coordinator."""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from parley.broker.coordinators.share_state.persister import StateBatch
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID

_UUID_CHARACTERS = 22


class SharePartitionKey(NamedTuple):
    """A partition as one share group sees it."""

    group_id: str
    topic_id: UUID
    partition: int

    @property
    def text(self) -> str:
        """The key that determines the share coordinator, in Kafka's form."""
        topic = base64.urlsafe_b64encode(self.topic_id.bytes).decode().rstrip("=")
        return f"{self.group_id}:{topic}:{self.partition}"


def parse_key(text: str) -> SharePartitionKey:
    """Parse the key of a share partition, whose group id may contain colons. Raises INVALID_REQUEST if it is
    malformed."""
    head, _, partition = text.rpartition(":")
    group_id, _, topic = head.rpartition(":")
    try:
        if not group_id.strip() or len(topic) != _UUID_CHARACTERS:
            raise ValueError(text)
        topic_id = UUID(bytes=base64.b64decode(topic + "==", altchars=b"-_", validate=True))
        return SharePartitionKey(group_id, topic_id, int(partition))
    except (ValueError, binascii.Error) as error:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "The key of a share coordinator must have the form group:topic id:partition."
        ) from error


@dataclass(frozen=True, slots=True)
class StoredState:
    """The stored state of a share partition, including the bookkeeping of the share coordinator."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    created_ms: int
    written_ms: int
    """When the last snapshot was written. It is later than ``created_ms`` if the snapshot repeats the previous one."""
    batches: tuple[StateBatch, ...] = ()
    updates: int = 0
    """The number of updates since the last snapshot."""
    fenced_below: int = -1
    """The highest leader epoch so far. Leaders with an earlier epoch are fenced."""
