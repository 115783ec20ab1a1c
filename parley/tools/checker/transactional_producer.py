"""A transactional producer that is replaced repeatedly, like an application that restarts.

Each instance commits most of its transactions, aborts some, and leaves the last one open. The next instance takes over
the transactional id, which aborts the open transaction. Then the old instance tries to commit it, and must fail.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping
from threading import Event
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from parley.tools.checker.history import History, Outcome

RECORDS_MAX: Final = 10
"""The maximum number of records in a transaction. With a few partitions, most transactions write to all of them."""
_TRANSACTIONS: Final = 25
"""The number of transactions of an instance."""
_ABORTED_EVERY: Final = 5
_CALL_S: Final = 5.0
"""The timeout of a call to the cluster, in seconds. A call that times out is repeated."""

_UNHEARD: Final = logging.Logger("librdkafka")
"""A logger without output. Regardless of its settings, librdkafka logs each fenced producer, but fencing is intended
here."""
_UNHEARD.addHandler(logging.NullHandler())

Send = Callable[[Producer, str, int, int], None]
"""Called with (client, producer name, record number, partition): sends the record and records its acknowledgement."""


class TransactionalProducer:
    """The producer of one transactional id, with its successive instances. Call ``run`` in a separate thread."""

    def __init__(
        self,
        name: str,
        history: History,
        settings: Mapping[str, Any],
        transactional_id: str,
        *,
        partitions: int,
        pause_s: float,
        give_up_s: float,
        over: Event,
        send: Send,
    ) -> None:
        """Create the producer. ``pause_s`` is the time between two records, in seconds. ``give_up_s`` limits how long
        calls to the cluster are retried. ``run`` ends after ``over`` is set."""
        self._name = name
        self._history = history
        self._settings = {**settings, "acks": "all", "linger.ms": 1, "transactional.id": transactional_id}
        self._partitions = partitions
        self._pause_s = pause_s
        self._give_up_s = give_up_s
        self._over = over
        self._send = send

    def run(self) -> None:
        """Produce until ``over`` is set. No transaction is open when this returns. Raises KafkaException if an instance
        cannot take over the transactional id."""
        replaced: tuple[str, Producer] | None = None
        for number in itertools.count():
            producer = Producer(self._settings, logger=_UNHEARD)
            self._until_done(producer.init_transactions)
            if replaced is not None:
                self._commit_as_zombie(*replaced)
            if self._over.is_set():
                return
            name = f"{self._name}.{number}"
            self._history.producer(name)
            replaced = (name, producer) if self._use(name, producer) else None
            self._history.producers[name].ended_at = time.monotonic()

    def _use(self, name: str, producer: Producer) -> bool:
        """Run the instance's transactions. Returns True if the last one is still open, or False if the instance has
        failed."""
        for turn in range(1, _TRANSACTIONS):
            if not self._transact(name, producer, commit=turn % _ABORTED_EVERY != 0):
                return False
            if self._over.is_set():
                break
        return self._fill(name, producer, RECORDS_MAX // 2)

    def _transact(self, name: str, producer: Producer, *, commit: bool) -> bool:
        """Run a transaction. Returns False if the instance has failed and is unusable; the outcome of the transaction
        may then be unknown."""
        if not self._fill(name, producer, RECORDS_MAX):
            return False
        while True:
            try:
                self._until_done(producer.commit_transaction if commit else producer.abort_transaction)
            except KafkaException as refused:
                if not commit or not refused.args[0].txn_requires_abort():
                    self._history.failures.append(f"{name}: {refused.args[0].str()}")
                    return False
                commit = False
            else:
                self._history.ended(name, Outcome.COMMITTED if commit else Outcome.ABORTED)
                return True

    def _fill(self, name: str, producer: Producer, records: int) -> bool:
        """Begin a transaction and send this many records. Returns False if the instance has failed."""
        try:
            producer.begin_transaction()
        except KafkaException as refused:
            self._history.failures.append(f"{name}: {refused.args[0].str()}")
            return False
        self._history.began(name)
        for _ in range(records):
            partition = len(self._history.producers[name].partitions) % self._partitions
            number = self._history.sent(name, partition)
            try:
                self._send(producer, name, number, partition)
            except KafkaException as refused:  # the transaction has failed already; its end reports it
                self._history.failed(name, number, refused.args[0].str())
            producer.poll(self._pause_s)
        return True

    def _commit_as_zombie(self, name: str, producer: Producer) -> None:
        """Try to commit the open transaction of an instance whose transactional id was taken over, and record if that
        succeeds."""
        self._history.ended(name, Outcome.ABORTED)
        try:
            producer.commit_transaction(_CALL_S)
        except KafkaException:
            return
        self._history.producers[name].commits_after_fencing += 1

    def _until_done(self, call: Callable[[float], None]) -> None:
        """Retry a call while it fails with a retriable error, for at most ``give_up_s`` seconds. Raises KafkaException
        after that, and for any other error."""
        deadline = time.monotonic() + self._give_up_s
        while True:
            try:
                call(_CALL_S)
                return
            except KafkaException as refused:
                if not refused.args[0].retriable() or time.monotonic() > deadline:
                    raise
