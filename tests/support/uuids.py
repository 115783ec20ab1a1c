"""UUIDs of the broker's class: random ones, and a Hypothesis strategy."""

from __future__ import annotations

from uuid import uuid4

from hypothesis import strategies as st

from parley.protocol.uuids import UUID


def uuids() -> st.SearchStrategy[UUID]:
    return st.integers(0, (1 << 128) - 1).map(lambda value: UUID(int=value))


def new_uuid() -> UUID:
    return UUID(int=uuid4().int)
