"""The ends of a source task's transactions (``transaction.boundary``, KIP-618). Decisions only.

=============  =====================================================================================================
``poll``       each batch that the task polls is a transaction
``interval``   a transaction ends when an interval has passed since the previous one ended
``connector``  the task decides, by its ``TransactionContext``; an open transaction is aborted when it stops
=============  =====================================================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Final

from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.records import SourceRecord


class Verdict(Enum):
    """The decision about the open transaction. The offsets of an aborted transaction are stored nevertheless."""

    CONTINUE = "continue"
    COMMIT = "commit"
    ABORT = "abort"


class Boundary(ABC):
    """Decides whether to end the transaction: after each record, after each ``poll``, and before the task pauses or
    stops.
    """

    def after_record(self, record: SourceRecord) -> Verdict:
        return Verdict.CONTINUE

    @abstractmethod
    def after_poll(self, records: int, now_ms: int) -> Verdict:
        """Decide after a ``poll`` that returned this many records."""

    def at_end(self) -> Verdict:
        return Verdict.COMMIT


class ByPoll(Boundary):
    """Ends the transaction after each ``poll`` that returns records."""

    def after_poll(self, records: int, now_ms: int) -> Verdict:
        return Verdict.COMMIT if records else Verdict.CONTINUE


class ByInterval(Boundary):
    """Ends the transaction after the first ``poll`` that returns when ``interval_ms`` have passed."""

    def __init__(self, interval_ms: int, now_ms: int) -> None:
        self._interval_ms = interval_ms
        self._last_ms = now_ms

    def after_poll(self, records: int, now_ms: int) -> Verdict:
        if now_ms < self._last_ms + self._interval_ms:
            return Verdict.CONTINUE
        self._last_ms = now_ms
        return Verdict.COMMIT


class Requests:
    """The commits and aborts that a task has requested. This is the task's ``TransactionContext``."""

    def __init__(self) -> None:
        self.of_batch: set[Verdict] = set()
        self.of_records: dict[int, tuple[SourceRecord, set[Verdict]]] = {}
        """The requests for single records, by ``id(record)``. The records are kept so that no other record gets the
        same id."""

    def commit_transaction(self, record: SourceRecord | None = None) -> None:
        self._ask(record, Verdict.COMMIT)

    def abort_transaction(self, record: SourceRecord | None = None) -> None:
        self._ask(record, Verdict.ABORT)

    def _ask(self, record: SourceRecord | None, verdict: Verdict) -> None:
        if record is None:
            self.of_batch.add(verdict)
        else:
            self.of_records.setdefault(id(record), (record, set()))[1].add(verdict)


class ByTask(Boundary):
    """Ends transactions when the task requests it. Raises ConnectError if the task requests both a commit
    and an abort.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def after_record(self, record: SourceRecord) -> Verdict:
        _, requested = self._requests.of_records.pop(id(record), (record, _NOTHING))
        if len(requested) > 1:
            raise ConnectError(
                "Connector requested both commit and abort of same record against topic/partition "
                f"{record.topic}/{record.kafka_partition}"
            )
        return next(iter(requested), Verdict.CONTINUE)

    def after_poll(self, records: int, now_ms: int) -> Verdict:
        return self.at_end() if records else Verdict.CONTINUE

    def at_end(self) -> Verdict:
        requested, self._requests.of_batch = self._requests.of_batch, set()
        if len(requested) > 1:
            raise ConnectError("Connector requested both commit and abort of same transaction")
        return next(iter(requested), Verdict.CONTINUE)


_NOTHING: Final[frozenset[Verdict]] = frozenset()
