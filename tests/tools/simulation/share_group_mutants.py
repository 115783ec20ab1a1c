"""Brokers with one planted bug each in share groups (KIP-932)."""

from __future__ import annotations

from typing import Any

import pytest

from parley.broker.api.share_fetch.reading import Headers
from parley.broker.coordinators.share_state import batches, decisions
from parley.broker.share import share_partition
from parley.broker.share.leading import LedSharePartition
from parley.broker.share.record_states import ARCHIVED, AVAILABLE
from parley.broker.share.share_partition import Limits, SharePartition, Write
from parley.broker.share.spans import Outcome, Span


def end_locks_early(patch: pytest.MonkeyPatch) -> None:
    """A lock expires as soon as it is checked, and a member's records go to the next member."""
    following = SharePartition.next_offset

    def end_all_locks(self: SharePartition, limits: Limits) -> int | None:
        self.end_locks(float("inf"), limits)
        return following(self, limits)

    patch.setattr(SharePartition, "next_offset", end_all_locks)


def forget_deliveries(patch: pytest.MonkeyPatch) -> None:
    """The delivery count of released records is not stored, so it starts over with the next leader."""
    begin = SharePartition.begin_write

    def begin_without_counts(self: SharePartition) -> Write:
        write = begin(self)
        batches = tuple(each for each in write.batches if each.delivery_state != AVAILABLE)
        return Write(write.start_offset, write.delivery_complete_count, batches, write.pending)

    patch.setattr(SharePartition, "begin_write", begin_without_counts)


def deliver_without_limit(patch: pytest.MonkeyPatch) -> None:
    """A record becomes available again however often it was delivered."""
    patch.setattr(share_partition, "_released", lambda span, limits: Outcome(AVAILABLE, span.delivery_count))
    acquire = SharePartition.acquire

    def acquire_anything(
        self: SharePartition, member: str, offset: int, found: Any, wanted: Any, limits: Limits, lock_until: float
    ) -> Any:
        most = limits._replace(delivery_count_limit=1_000)
        return acquire(self, member, offset, found, wanted, most, lock_until)

    patch.setattr(SharePartition, "acquire", acquire_anything)


def confirm_unstored(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement is confirmed before the share coordinator has stored it."""
    acknowledge = LedSharePartition.acknowledge

    def acknowledge_at_once(self: LedSharePartition, *args: Any) -> None:
        stored = acknowledge(self, *args)
        if stored is not None:
            stored.add_done_callback(lambda future: future.exception())

    patch.setattr(LedSharePartition, "acknowledge", acknowledge_at_once)


def store_no_outcome(patch: pytest.MonkeyPatch) -> None:
    """The share coordinator stores the start offset of the group, but not the states of the records after it."""
    merge = batches.combined

    def only_known(known: Any, added: Any, start_offset: int) -> Any:
        return merge(known, (), start_offset)

    patch.setattr(decisions, "combined", only_known)


def archive_released(patch: pytest.MonkeyPatch) -> None:
    """A record that is released in its first delivery is not delivered again."""
    released = share_partition._released

    def archive_first(span: Span, limits: Limits) -> Any:
        outcome = released(span, limits)
        return outcome._replace(state=ARCHIVED) if span.delivery_count == 1 else outcome

    patch.setattr(share_partition, "_released", archive_first)


def keep_locks(patch: pytest.MonkeyPatch) -> None:
    """A lock never ends."""
    patch.setattr(LedSharePartition, "_watch_locks", lambda self, within_s: None)


def send_other_records(patch: pytest.MonkeyPatch) -> None:
    """The response contains only the batch of the first acquired record."""
    part = Headers.part

    def part_of_first(self: Headers, acquired: Any) -> Any:
        return part(self, [acquired[0]._replace(last=acquired[0].first)])

    patch.setattr(Headers, "part", part_of_first)
