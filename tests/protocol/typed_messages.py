"""What mypy must understand about messages. No module imports this file; ``make lint`` checks it.

Each ``type: ignore`` marks an error that mypy must find, because mypy reports unused ignores.
"""

from __future__ import annotations

from parley.protocol.codec import decode
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.schema import Request, Struct, field, i16, i32
from parley.protocol.uuids import UUID


class Ask(Request, key=500, versions="0-1"):
    """A message with a field of each kind that mypy must distinguish."""

    class Part(Struct):
        """A nested struct."""

        number: i32

    acks: i16
    parts: list[Part]
    note: str | None = field("1+", default=None)


def right() -> tuple[Ask, int, UUID]:
    ProduceRequest.PartitionProduceData(index=1, records=[b"a", memoryview(b"b")], unknown_tags=((1, b""),))
    number = decode(Ask, 1, b"").parts[0].number
    topic_id = decode(ProduceRequest, 9, b"").topic_data[0].topic_id
    return Ask(acks=1, parts=[Ask.Part(number=1)]), number, topic_id


def wrong(ask: Ask) -> tuple[str, int]:
    Ask(acks=1)  # type: ignore[call-arg]
    Ask(acks="1", parts=[])  # type: ignore[arg-type]
    Ask(acks=1, parts=[], note=1)  # type: ignore[arg-type]
    Ask(1, [])  # type: ignore[call-arg, arg-type]
    ask.nothing()  # type: ignore[attr-defined]
    text: str = ask.acks  # type: ignore[assignment]
    return text, len(ask.note)  # type: ignore[arg-type]
