"""How a broker joins the group of brokers, and what it does if another process has taken its place."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from parley.broker.membership.joining import BROKERS_GROUP, DuplicateBrokerId, Joining
from parley.broker.metadata.encoding import registration_to_bytes
from parley.broker.metadata.types import BrokerRegistration
from parley.consensus.memory import MemoryBackend, MemoryStore
from parley.consensus.recipes.groups import Groups
from parley.protocol.uuids import UUID

THIS, OTHER = (BrokerRegistration(5, -1, UUID(int=number), ()) for number in (1, 2))


@pytest.mark.parametrize(("own_epoch", "is_refused"), [(6, True), (8, False)])
async def test_a_process_gives_way_to_a_later_one_but_not_to_one_from_a_backup(
    own_epoch: int, is_refused: bool
) -> None:
    """If the store was rolled back, it may contain an earlier process of this broker as a member."""
    async with MemoryBackend(MemoryStore()) as backend:
        groups = Groups(backend, await backend.open_session(60_000))
        await groups.join(BROKERS_GROUP, "5", registration_to_bytes(OTHER), min_incarnation=7)
        with pytest.raises(DuplicateBrokerId) if is_refused else nullcontext():
            await Joining(THIS, "PLAINTEXT").refuse_successor(groups, own_epoch)
