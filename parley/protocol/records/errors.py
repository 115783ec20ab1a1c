"""What can be wrong with records, as the protocol says it."""

from __future__ import annotations

from parley.protocol.errors import ErrorCode, KafkaError


class CorruptRecord(KafkaError):
    """Bytes that are no batch, or whose checksum does not match (CORRUPT_MESSAGE, which clients retry)."""

    def __init__(self, message: str = "") -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


class InvalidRecord(KafkaError):
    """A batch that arrived as it was sent and still is not acceptable (INVALID_RECORD, which clients do not retry)."""

    def __init__(self, message: str = "") -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


class DecompressedTooLarge(KafkaError):
    """A batch whose records would exceed the limit once decompressed (MESSAGE_TOO_LARGE: clients split and resend)."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, f"the records of a batch exceed {max_bytes} bytes decompressed")
