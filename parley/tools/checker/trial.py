"""Clients that produce a history: librdkafka producers and readers on any Kafka cluster, each in a thread.

Producers send to the partitions in turn, at a steady rate, with ``acks=all``, and retry until the trial ends. They skip
a partition that does not respond. They may use transactions (``transactional_producer.py``). Readers follow every
partition from its beginning, and read committed records only. At the end, another reader reads every partition from
beginning to end.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from threading import Event, Thread
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from parley.tools.checker.history import Guarantees, History, payload
from parley.tools.checker.transactional_producer import TransactionalProducer
from parley.tools.checker.verdict import Verdict, check

_log = logging.getLogger(__name__)

WAIT_S: Final = 60.0
"""The time, in seconds, that the cluster may take for a response after the faults have ended."""
STOP_S: Final = 2 * WAIT_S
"""The time, in seconds, that the clients may take to stop. A consumer of librdkafka may never stop: two of its threads
can deadlock if a broker dies while the consumer closes (librdkafka issue 5476)."""
END_WAIT_S: Final = 15.0
"""The time, in seconds, for which a partition's end offset may stay below an acknowledged record. After that, the
record counts as lost."""
UNDER_WAY_MAX: Final = 5
"""The maximum number of unacknowledged records per partition of a producer. librdkafka's idempotent producer has at
most five requests per partition in flight. With more records its threads check constantly whether they may send, so a
trial with a hanging broker would take the CPU that the other brokers need."""
_QUICK: Final = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "topic.metadata.refresh.fast.interval.ms": 20,
    "log_level": 0,
}
"""Settings with which a client finds a new leader as quickly as possible."""


class Unreadable(RuntimeError):
    """Raised if a partition cannot be read at the end of a trial. The text contains its name and the reason."""


class Trial:
    """Clients that run while the cluster is disrupted. Use it as a context manager, then call ``verdict``."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        partitions: int,
        producers: int = 1,
        readers: int = 1,
        idempotent: bool = True,
        transactional: bool = False,
        rate: float = 500,
        record_bytes: int = 100,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the clients; entering the context starts them. ``rate`` is in records per second for each producer.
        ``client`` contains additional settings for every client."""
        self.history = History()
        self.topic = topic
        self.partitions = partitions
        self.errors: list[str] = []
        """Errors with which clients of this trial stopped early."""
        self._settings = {"bootstrap.servers": bootstrap_servers, **_QUICK, **(client or {})}
        self._idempotent = idempotent
        self._interval_s = 1 / rate
        self._record_bytes = record_bytes
        self._under_way: Counter[tuple[str, int]] = Counter()
        """The number of unacknowledged records by producer and partition."""
        self._over = Event()
        produce = self._transact if transactional else self._produce
        self._threads = [self._thread(produce, f"p{n}") for n in range(producers)]
        self._threads += [self._thread(self._follow, f"r{n}") for n in range(readers)]

    def create_topic(self, replicas: int, config: Mapping[str, str] | None = None) -> None:
        """Create the topic. Raises the errors of ``create``."""
        new = NewTopic(self.topic, self.partitions, replicas, config=dict(config or {}))
        create(AdminClient(self._settings), new)

    def delete_topic(self) -> None:
        """Delete the topic.

        Raises KafkaException if the cluster rejects the request, and KafkaException or TimeoutError if it does not
        respond.
        """
        admin = AdminClient(self._settings)
        admin.delete_topics([self.topic])[self.topic].result(WAIT_S)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        deadline = time.monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._left_behind(thread.name)

    def _left_behind(self, name: str) -> None:
        """Continue without a client that does not stop. Its thread is a daemon, so the process can end.

        What a reader has read so far remains valid. A producer may still be sending, so the trial fails with an error.
        """
        if name.startswith("p"):
            self.errors.append(f"{name} did not stop within {STOP_S:.0f} s")
        else:
            _log.warning("reader %s does not stop; continuing without it", name)

    @property
    def acknowledged(self) -> int:
        """The number of records acknowledged so far."""
        return sum(len(each.acknowledged_at) for each in list(self.history.producers.values()))

    def wait_for_acknowledged(self, more: int, *, within_s: float = WAIT_S) -> None:
        """Wait until this many more records have been acknowledged. Raises TimeoutError if that takes longer than
        ``within_s``."""
        goal, deadline = self.acknowledged + more, time.monotonic() + within_s
        while self.acknowledged < goal:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.acknowledged} of {goal} records acknowledged in time: {self.errors}")
            self._over.wait(0.005)

    def verdict(self) -> Verdict:
        """Read all partitions to their ends, check the history, and return the result. Call it after the context has
        ended.

        The result does not include ``errors`` and ``History.failures``. Raises Unreadable if a partition cannot be
        read.
        """
        ends = [0] * self.partitions
        for producer in self.history.producers.values():
            for partition, offset in zip(producer.partitions, producer.offsets, strict=True):
                ends[partition] = max(ends[partition], offset + 1)
        for partition, end in enumerate(ends):
            self.history.final(partition, *_read(self._settings, self.topic, partition, end))
        return check(self.history)

    # --- The clients ---

    def _thread(self, client: Callable[[str], None], name: str) -> Thread:
        return Thread(target=self._run, args=(client, name), name=name, daemon=True)

    def _run(self, client: Callable[[str], None], name: str) -> None:
        try:
            client(name)
        except Exception as error:
            self.errors.append(f"{name}: {error!r}")

    def _produce(self, name: str) -> None:
        promised = Guarantees() if self._idempotent else Guarantees(ordered=False, once=False)
        written = self.history.producer(name, promised)
        settings = {"acks": "all", "enable.idempotence": self._idempotent, "linger.ms": 1, "message.timeout.ms": 0}
        producer = Producer({**self._settings, **settings})
        due = time.monotonic()
        for partition in itertools.cycle(range(self.partitions)):
            if self._over.is_set():
                break
            if self._under_way[name, partition] < UNDER_WAY_MAX:
                self._send(producer, name, self.history.sent(name, partition), partition)
            due = max(due + self._interval_s, time.monotonic() - 1)
            producer.poll(max(0.0, due - time.monotonic()))
        left = producer.flush(WAIT_S)
        written.ended_at = time.monotonic()
        if left:
            self.errors.append(f"{name}: {left} records were still not acknowledged {WAIT_S:.0f} s after the end")

    def _transact(self, name: str) -> None:
        TransactionalProducer(
            name,
            self.history,
            self._settings,
            f"{self.topic}-{name}",
            partitions=self.partitions,
            pause_s=self._interval_s,
            give_up_s=WAIT_S,
            over=self._over,
            send=self._send,
        ).run()

    def _send(self, producer: Producer, name: str, number: int, partition: int) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            self._under_way[name, partition] -= 1
            if error is not None:
                self.history.failed(name, number, str(error))
            else:
                where, offset = message.partition() or 0, message.offset()
                self.history.acknowledged(name, number, where, offset, at=time.monotonic())

        while True:
            try:
                value = payload(name, number, self._record_bytes)
                producer.produce(self.topic, value, partition=partition, on_delivery=delivered)
                self._under_way[name, partition] += 1
                return
            except BufferError:
                if self._over.is_set():
                    return
                producer.poll(0.1)

    def _follow(self, name: str) -> None:
        consumer = _reader(self._settings)
        try:
            consumer.assign([TopicPartition(self.topic, index, 0) for index in range(self.partitions)])
            while not self._over.is_set():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    self.history.saw(name, message.partition() or 0, message.offset() or 0, message.value())
        finally:
            consumer.close()


def create(admin: AdminClient, new: NewTopic) -> None:
    """Create a topic. Retries while the cluster elects a controller, which librdkafka does not do.

    Raises KafkaException if the cluster rejects the request, and KafkaException or TimeoutError if it does not respond.
    """
    deadline = time.monotonic() + WAIT_S
    passing = {KafkaError.NOT_CONTROLLER}
    while True:
        try:
            admin.create_topics([new])[new.topic].result(WAIT_S)
            return
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_ALREADY_EXISTS and code in passing:
                return
            if code not in passing or time.monotonic() > deadline:
                raise
        passing.add(KafkaError.TOPIC_ALREADY_EXISTS)  # a former controller may have created it
        time.sleep(0.1)


def _reader(settings: Mapping[str, Any]) -> Consumer:
    return Consumer(
        {
            **settings,
            "group.id": "parley-check",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
        }
    )


def _read(
    settings: Mapping[str, Any], topic: str, partition: int, expected_end: int
) -> tuple[int, int, list[tuple[int, bytes | None]]]:
    """Read a partition from beginning to end. Returns its start and end offsets, and the offset and value of each
    record. Raises Unreadable if that fails."""
    consumer = _reader(settings)
    try:
        start, end = _bounds(consumer, TopicPartition(topic, partition), expected_end)
        consumer.assign([TopicPartition(topic, partition, start)])
        return start, end, list(_until(consumer, end, f"{topic}-{partition}"))
    finally:
        consumer.close()


def _bounds(consumer: Consumer, partition: TopicPartition, expected_end: int) -> tuple[int, int]:
    """Return the partition's start and end offsets. Waits up to ``END_WAIT_S`` if the end offset is below
    ``expected_end``, because a new leader may not know it yet. Raises Unreadable if the partition has no leader for
    ``WAIT_S``."""
    began = time.monotonic()
    while True:
        waited = time.monotonic() - began
        try:
            start, end = consumer.get_watermark_offsets(partition, timeout=5)
            if end >= expected_end or waited > END_WAIT_S:
                return start, end
        except KafkaException as error:
            if waited > WAIT_S:
                raise Unreadable(f"{partition.topic}-{partition.partition} has no leader: {error}") from error
        time.sleep(0.1)


def _until(consumer: Consumer, end: int, name: str) -> Iterator[tuple[int, bytes | None]]:
    deadline = time.monotonic() + WAIT_S
    position = 0
    while position < end:
        message = consumer.poll(1.0)
        if message is None or ((error := message.error()) is not None and error.code() != KafkaError._PARTITION_EOF):
            if time.monotonic() > deadline:
                raise Unreadable(f"{name} was read to offset {position} of {end}, and then nothing for {WAIT_S:.0f} s")
            continue
        if message.error() is not None:
            if (message.offset() or 0) >= end:
                return
            continue
        deadline = time.monotonic() + WAIT_S
        offset = message.offset() or 0
        position = offset + 1
        yield offset, message.value()
