"""What a broker does not say while others may have replaced it without its having heard of it.

A process that was stopped, or cut off, and comes back leads for itself until it hears otherwise. Whatever it appends in
that time is never acknowledged with ``acks=all``, and is cut off again; ``acks=1`` promises no more than that. The
doubt lasts until a controller has answered a question asked since then (``controller.liveness``). Meanwhile a client
that comes to it with what the new leader knows, and it does not, must not be told that it is wrong:

* OUT_OF_ORDER_SEQUENCE_NUMBER makes librdkafka count anew under a newer epoch, and send again what the new leader may
  have appended: it would be there twice, and no broker could tell.
* OFFSET_OUT_OF_RANGE, past the log's end, makes a consumer go back to the earliest offset, or miss records.

Newer clients notice by the leader's epoch that such a broker is out of date; others do not look. So they are told that
it does not lead, and ask where to go. If nobody has replaced it, the doubt passes, and they are told then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from parley.protocol.errors import ErrorCode, KafkaError

InDoubt: TypeAlias = Callable[[], bool]
"""Whether this broker may have been replaced, where it leads, without its having heard of it."""


def never() -> bool:
    """Nobody else is there to replace this broker."""
    return False


def withheld(error: KafkaError) -> KafkaError:
    """What is said in the place of an error that may be wrong."""
    return KafkaError(
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        f"This broker has been out of touch with its cluster, and may not lead any more. If it does: {error}",
    )
