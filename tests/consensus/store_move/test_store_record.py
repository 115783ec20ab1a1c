from __future__ import annotations

from itertools import product

import pytest

from parley.consensus.errors import IllegalStep, PreconditionFailed
from parley.consensus.memory import MemoryBackend
from parley.consensus.recipes.settled_write import Writer
from parley.consensus.store_move.store_record import (
    NO_RECORD,
    RECORD_KEY,
    STEPS,
    StoredRecord,
    StoreEvent,
    StoreRecord,
    StoreState,
    read_record,
    write_record,
)

IN_CHARGE, PREPARING, FROZEN, MOVED, CLAIMED = StoreState


async def test_a_move_changes_the_records_step_by_step() -> None:
    async with MemoryBackend() as backend:
        stored, writer = NO_RECORD, Writer(backend)
        for event, state in (
            (StoreEvent.BEGIN, IN_CHARGE),
            (StoreEvent.PREPARE, PREPARING),
            (StoreEvent.FREEZE, FROZEN),
            (StoreEvent.COMMIT, MOVED),
            (StoreEvent.CLAIM, CLAIMED),
            (StoreEvent.TAKE, IN_CHARGE),
        ):
            old, stored = stored, await write_record(writer, stored, event, StoreRecord(state))
            assert await read_record(backend) == stored
            with pytest.raises(PreconditionFailed):
                await write_record(writer, old, event, StoreRecord(state))


ILLEGAL = [
    (before, event, after)
    for before, event, after in product((None, *StoreState), StoreEvent, StoreState)
    if after not in STEPS[before].get(event, ())
]


async def test_a_step_that_the_table_lacks_is_refused_before_anything_is_sent() -> None:
    async with MemoryBackend() as backend:
        writer = Writer(backend)
        revision = await backend.put(RECORD_KEY, b"")
        for before, event, after in ILLEGAL:
            stored = NO_RECORD if before is None else StoredRecord(StoreRecord(before), revision)
            with pytest.raises(IllegalStep, match=f"{event.name} to {after.name} is not legal"):
                await write_record(writer, stored, event, StoreRecord(after))
        entry = await backend.get(RECORD_KEY)
        assert entry is not None
        assert entry.revision == revision


def test_a_store_that_has_moved_or_is_claimed_is_never_in_charge_by_itself() -> None:
    assert {event for event, to in STEPS[MOVED].items() if IN_CHARGE in to} == set()
    assert {event for event, to in STEPS[CLAIMED].items() if IN_CHARGE in to} == {StoreEvent.TAKE, StoreEvent.RESTORE}
    assert [before for before, steps in STEPS.items() if StoreEvent.COMMIT in steps] == [FROZEN]
