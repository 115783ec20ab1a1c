"""The errors of record batches, with their protocol error codes."""

from __future__ import annotations

from parley.protocol.errors import ErrorCode, KafkaError


class CorruptRecord(KafkaError):
    """The bytes are not a batch, or have a wrong checksum (CORRUPT_MESSAGE, which clients retry)."""

    def __init__(self, message: str = "") -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


class InvalidRecord(KafkaError):
    """A batch is intact, but its contents are not valid (INVALID_RECORD, which clients do not retry)."""

    def __init__(self, message: str = "") -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


class DecompressedTooLarge(KafkaError):
    """The decompressed records of a batch exceed the limit (MESSAGE_TOO_LARGE: clients split the batch and send it
    again)."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, f"the records of a batch exceed {max_bytes} bytes decompressed")


class BatchTooLarge(KafkaError):
    """A batch exceeds the topic's ``max.message.bytes`` (MESSAGE_TOO_LARGE: clients split the batch and
    send it again)."""

    def __init__(self, size: int, max_message_bytes: int) -> None:
        message = f"a batch of {size} bytes exceeds the topic's max.message.bytes of {max_message_bytes}"
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, message)
