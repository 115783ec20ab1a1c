"""The key of a share partition: a partition as one share group sees it."""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

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
