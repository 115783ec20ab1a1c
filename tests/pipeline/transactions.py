"""Transactions of a stock client, for tests of readers. A commit is confirmed before its markers are written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import Producer

from parley.pipeline.client import transactions
from parley.pipeline.client.cluster import LATEST, Cluster, Connection, Isolation, TopicPartition
from tests.pipeline.mirror.clusters import Row


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction whose records are in the log."""

    bootstrap: str
    transactional_id: str
    producer: Producer

    def commit(self) -> None:
        """Commit it. Returns when its markers are written."""
        self.producer.commit_transaction(60)
        self._await_markers()

    def abort(self) -> None:
        """Abort it. Returns when its markers are written."""
        self.producer.abort_transaction(60)
        self._await_markers()

    def _await_markers(self) -> None:
        """Wait until the markers are written: only then does the coordinator give the next producer its id."""
        with Cluster(Connection(bootstrap=self.bootstrap)) as cluster:
            cluster.retry(lambda client: transactions.producer_id(client, self.transactional_id, 60_000))


def open_transaction(bootstrap: str, topic: str, records: Iterable[Row]) -> OpenTransaction:
    """Write records to the first partition of a topic in a transaction, which stays open however long the
    test takes."""
    settings = {"transactional.id": topic, "transaction.timeout.ms": 900_000}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    producer.init_transactions(60)
    producer.begin_transaction()
    for key, value, timestamp, headers in records:
        producer.produce(topic, value, key, 0, timestamp=timestamp, headers=list(headers))
    assert producer.flush(60) == 0
    return OpenTransaction(bootstrap, topic, producer)


def commit_transaction(bootstrap: str, topic: str, records: Iterable[Row]) -> None:
    """Write records in a transaction and commit it."""
    open_transaction(bootstrap, topic, records).commit()


def abort_transaction(bootstrap: str, topic: str, records: Iterable[Row]) -> None:
    """Write records in a transaction and abort it."""
    open_transaction(bootstrap, topic, records).abort()


def await_markers(bootstrap: str, topic: str) -> None:
    """Wait until no transaction is open in the topic and all markers are written."""
    with Cluster(Connection(bootstrap=bootstrap)) as cluster:
        partitions = [TopicPartition(topic, number) for number in cluster.partitions([topic])[topic]]
        wanted = dict.fromkeys(partitions, LATEST)
        while cluster.offsets(wanted, Isolation.READ_COMMITTED) != cluster.offsets(wanted):
            pass
