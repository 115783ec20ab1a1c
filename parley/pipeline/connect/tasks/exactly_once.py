"""One source task that writes exactly once (KIP-618): its records and its source offsets in the same transactions.

Rules:

1. Before it begins, all older tasks are fenced (``Guard.fence``). Then the task claims its transactional id, which
   aborts the open transaction of an earlier task with its number, and checks that it is still valid
   (``Guard.verify``). Only then does it read the stored offsets.
2. Offsets are written to the connector's offsets topic, at the end of the transaction with their records.
3. After a failure nothing is committed: the open transaction is aborted, and the task is ``FAILED``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from parley.pipeline.connect.connector import SourceTask, TransactionContext
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.offset_stores import key_of
from parley.pipeline.connect.records import SourceRecord
from parley.pipeline.connect.tasks.boundaries import Boundary, Verdict
from parley.pipeline.connect.tasks.conversion import Conversion, Outgoing
from parley.pipeline.connect.tasks.guard import Guard
from parley.pipeline.connect.tasks.source_run import SourceRun, TopicMaker
from parley.pipeline.connect.tasks.spec import TaskSpec
from parley.pipeline.connect.tasks.tolerance import Tolerance
from parley.pipeline.connect.tasks.topic_writing import TransactionWriter
from parley.protocol.errors import ErrorCode, KafkaError

_EXPIRED: Final = (
    "The task {} was unable to finish writing records to Kafka before its producer transaction expired. "
    "It may be necessary to reconfigure this connector in order for it to run healthily with exactly-once support. "
    "Options for this include: tune the connector's producer configuration for higher throughput, "
    "increase the transaction timeout for the connector's producers, "
    "decrease the offset commit interval (if using interval-based transaction boundaries), "
    "or use the 'poll' transaction boundary (if the connector is not already configured to use it)."
)
_log = logging.getLogger(__name__)


class ExactlyOnceRun(SourceRun):
    """Runs a source task whose records and offsets are committed in the same transactions.

    If the connector decides where transactions end, ``requests`` takes the task's requests to commit or abort.
    """

    def __init__(
        self,
        spec: TaskSpec,
        task: SourceTask,
        conversion: Conversion,
        tolerance: Tolerance,
        writer: TransactionWriter,
        topics: TopicMaker,
        guard: Guard,
        *,
        offsets_topic: str,
        boundary: Boundary,
        requests: TransactionContext | None,
    ) -> None:
        super().__init__(spec, task, conversion, tolerance, writer, topics, guard, transactions=requests)
        self._transactions = writer
        self._offsets_topic = offsets_topic
        self._boundary = boundary
        self._passed: list[SourceRecord] = []
        """The records since the last commit, if the task overrides ``commit_record``."""
        self._wants_records = type(task).commit_record is not SourceTask.commit_record
        self._is_begun = False
        self._has_failed = False

    def begin(self) -> None:
        """Fence older tasks, then start this one. Returns without starting it if the task is stopped meanwhile.

        Raises the task's errors, and ConnectError if the task may not start.
        """
        with self._failing():
            self._guard.fence()
            self._guard.check()
            if self._tolerance.stopping.is_set():
                return  # another task may have replaced it, and must not be fenced
            self._transactions.claim()
            self._guard.verify()
            self._is_begun = True
            self._start()

    def step(self, wait_s: float) -> None:
        """Poll once and write the records, or wait up to ``wait_s`` if there are none. End the transaction if that is
        due.

        Raises the task's errors and ConnectError. After an error, only ``finish`` may follow.
        """
        with self._failing():
            polled = self._poll(wait_s)
            self._send(polled)
            verdict = self._boundary.after_poll(len(polled), self._now_ms())
            if verdict is Verdict.CONTINUE:
                self._transactions.flush()
            self._end(verdict)

    def _send(self, polled: Sequence[SourceRecord]) -> None:
        """Write the records, and end the transaction after each record that ends one."""
        held: list[Outgoing] = []
        for record in polled:
            outgoing = self._conversion.outgoing(record, self._tolerance)
            if outgoing is not None:
                held.append(outgoing)
            if self._wants_records:
                self._passed.append(record)
            if record.source_partition:
                key = key_of(self._spec.id.connector, record.source_partition)
                self._done[key] = (record.source_partition, record.source_offset)
            verdict = self._boundary.after_record(record)
            if verdict is not Verdict.CONTINUE:
                self._write(held)
                held = []
                self._end(verdict)
        self._write(held)

    def _write(self, outgoing: Sequence[Outgoing]) -> None:
        self._guard.check()
        if any(one.topic == self._offsets_topic for one in outgoing):
            # Reading offsets waits for open transactions in their topic, so the task would wait for itself.
            raise ConnectError(
                "Source tasks may not produce to their own offsets topics when exactly-once support is enabled"
            )
        self._use({one.topic for one in outgoing})
        self._transactions.write(outgoing)

    def commit(self) -> None:
        """Let the boundaries decide whether to end the transaction now, because the task pauses. Raises
        ConnectError.
        """
        with self._failing():
            self._end(self._boundary.at_end())

    def _end(self, verdict: Verdict) -> None:
        if verdict is Verdict.CONTINUE:
            return
        self._guard.check()
        if verdict is Verdict.ABORT and not self._transactions.abort():
            _log.warning("%s: the transaction is empty, so there is nothing to abort", self._spec.id)
        if self._done:
            offsets = self._guard.encoded(list(self._done.values()))
            self._transactions.write_keyed(self._offsets_topic, offsets)
            self._done.clear()
        self._transactions.commit()
        passed, self._passed = self._passed, []
        for record in passed:
            self._task.commit_record(record)
        self._task.commit()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Record a failure of the body of ``with``, so that nothing is committed later. Raises ConnectError instead of
        the writer's KafkaError.
        """
        try:
            yield
        except KafkaError as error:
            self._has_failed = True
            if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
                raise ConnectError(_EXPIRED.format(self._spec.id)) from error
            text = f"Failed to flush offsets and/or records for task {self._spec.id}: {error}"
            raise ConnectError(text) from error
        except BaseException:
            self._has_failed = True
            raise

    def finish(self) -> None:
        """End the transaction, unless it has failed, and stop the task. Raises the errors of its ``stop``."""
        try:
            if self._is_begun and not self._has_failed:
                self.commit()
        except Exception as error:
            _log.warning("%s: the last transaction is aborted: %s", self._spec.id, error, exc_info=error)
        finally:
            self._transactions.close()
            if self._is_begun:
                self._task.stop()
            self._conversion.close()
