"""What the leader of a partition knows about its followers, and which of them the high watermark waits for. No I/O, no
clock.

Rules of this module:

* The high watermark waits for the members of the ISR. While a proposed ISR is pending at the controller, it also waits
  for the members of that ISR (KIP-497). It also waits for a follower that is about to join. ``Partition`` advances it.
* A new state of the partition settles the proposed ISR. A follower outside the ISR then joins it only after another
  fetch. Under a new leader epoch, nothing is known about the followers yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from parley.broker.metadata.types import BrokerRegistration
from parley.broker.replication.follower_progress import FetchClock, FollowerProgress
from parley.storage.checkpoints import INT64_MAX

CATCHING_UP_S = 60.0
"""How long after its last fetch a follower still counts as catching up."""


class Followers:
    """The followers of one partition. Empty if this replica is a follower."""

    __slots__ = ("_awaited", "_isr", "_proposed_isr", "progress")

    def __init__(self, replicas: Iterable[int], isr: tuple[int, ...]) -> None:
        """``replicas`` are the broker ids of the followers. ``isr`` is the current ISR, including the leader."""
        self.progress: Mapping[int, FollowerProgress] = {replica: FollowerProgress() for replica in replicas}
        """The progress of each follower, by broker id."""
        self._isr = isr
        self._proposed_isr: tuple[int, ...] = ()  # the ISR proposed to the controller; empty if none
        self._awaited: tuple[FollowerProgress, ...] = ()  # the followers that the high watermark waits for
        self._choose_awaited()

    # --- The ISR ---

    def change(self, replicas: Iterable[int], isr: tuple[int, ...], *, is_new_epoch: bool, is_new_state: bool) -> bool:
        """Apply the controller's state of the partition, which may be the known one. ``is_new_epoch`` is True if its
        leader epoch is new.

        Returns True if a follower outside the ISR must fetch again before it joins: the state may have changed because
        a follower is about to remove its log.
        """
        known = {} if is_new_epoch else self.progress
        self.progress = {replica: known.get(replica) or FollowerProgress() for replica in replicas}
        self._isr = isr
        outsiders: list[FollowerProgress] = []
        if is_new_state:  # the same state may arrive twice, from a response and from the metadata
            self._proposed_isr = ()
            outsiders = [progress for replica, progress in self.progress.items() if self.is_outsider(replica)]
            for progress in outsiders:
                progress.forget_arrival()
        self._choose_awaited()
        return bool(outsiders)

    @property
    def has_proposed_isr(self) -> bool:
        """True while a proposed ISR is pending at the controller."""
        return bool(self._proposed_isr)

    def propose_isr(self, isr: tuple[int, ...]) -> None:
        """Record that this ISR has been proposed to the controller. The high watermark now also waits for its
        members."""
        self._proposed_isr = isr
        self._choose_awaited()

    def withdraw_isr(self) -> None:
        """Record that the controller has rejected the proposed ISR. ``Partition.withdraw_isr`` calls this, and then
        advances the high watermark."""
        self._proposed_isr = ()
        self._choose_awaited()

    def is_outsider(self, replica: int) -> bool:
        """Return True if a follower is neither in the ISR nor in the proposed ISR."""
        return replica not in self._isr and replica not in self._proposed_isr

    def set_joining(self, replica: int, is_joining: bool) -> bool:
        """Record whether a follower outside the ISR is about to join. Returns True if that has changed."""
        progress = self.progress.get(replica)
        if progress is None or progress.is_joining is is_joining:
            return False
        progress.is_joining = is_joining
        self._choose_awaited()
        return True

    def _choose_awaited(self) -> None:
        self._awaited = tuple(
            progress
            for replica, progress in self.progress.items()
            if progress.is_joining or not self.is_outsider(replica)
        )

    # --- What the fetches show ---

    def session_ended(self, clock: FetchClock) -> None:
        """Record that the session with this clock no longer fetches the partition, for example because the follower's
        disk failed.

        A follower outside the ISR then needs another fetch before it can join.
        """
        for progress in self.progress.values():
            if progress.is_reported_by(clock):
                progress.session_ended()

    def reached(self, leader_end: int) -> int:
        """Return the offset up to which the leader, whose log ends at ``leader_end``, and all awaited followers have
        the log; -1 if a follower does not count yet."""
        reached = leader_end
        for progress in self._awaited:
            if progress.counted_end < reached:
                reached = progress.counted_end
        return reached

    def ending_before(self, offset: int) -> set[int]:
        """Return the followers, alive or not, whose logs ended at or before ``offset`` at their last fetch. Can be
        called from any thread.

        Such a follower has acknowledged no record at or after ``offset``. It may have received one in the response to
        that fetch.
        """
        return {replica for replica, progress in self.progress.items() if 0 <= progress.log_end_offset <= offset}

    def low_watermark(self, leader_start: int, brokers: Mapping[int, BrokerRegistration]) -> int:
        """Return the offset below which neither the leader, whose log starts at ``leader_start``, nor a follower on a
        live broker has records; -1 while such a follower has not fetched under the current leader epoch."""
        return min(
            [leader_start]
            + [
                progress.log_start_offset
                for replica, progress in self.progress.items()
                if replica in brokers and not brokers[replica].fenced
            ]
        )

    def tombstones_kept_from(self, now_s: float) -> int:
        """Return the lowest offset from which a follower is fetching; INT64_MAX if none is. Can be called from any
        thread.

        Compaction keeps the tombstones from that offset on. Otherwise a follower that takes longer than
        ``delete.retention.ms`` to catch up would have to start over again and again.
        """
        fetching = [each for each in self.progress.values() if now_s - each.last_fetched_s <= CATCHING_UP_S]
        return min((each.log_end_offset for each in fetching), default=INT64_MAX)
