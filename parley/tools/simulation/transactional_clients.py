"""Simulated transactional producers, which record each step and its outcome in the ``TransactionLedger``.

A transactional id is used by one instance after another. The next instance starts while the previous one still works,
and fences it. The fenced instance does not know that, and continues until a request fails. A seed decides whether an
instance behaves like clients from before KIP-890 (AddPartitionsToTxn, the epoch stays the same) or like newer clients
(transaction version 2: produce adds the partition, each transaction has a new epoch).

Each transaction writes records to some partitions, and commits its own number as the offset of a group that has the
name of the transactional id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, Final

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.group_offsets import OffsetFetchRequest
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.producers import InitProducerIdRequest
from parley.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.protocol.schema import Request
from parley.tools.simulation.client_invariants import Ledger
from parley.tools.simulation.clients import _User
from parley.tools.simulation.machines import EPOCH_MS
from parley.tools.simulation.transaction_ledger import Transaction, TransactionLedger

TRANSACTION_TIMEOUT_MS: Final = 600_000
"""The transaction timeout. It is longer than a run, so that only producers end transactions."""
_BY_TRANSACTIONAL_ID: Final = 1
_FENCED: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
"""Errors after which an instance gives up. Only a newer instance may cause them."""
_VERSIONS: Final[dict[bool, dict[type[Request], int]]] = {
    False: {AddPartitionsToTxnRequest: 3, EndTxnRequest: 3, TxnOffsetCommitRequest: 3, ProduceRequest: 9},
    True: {EndTxnRequest: 5, TxnOffsetCommitRequest: 5, ProduceRequest: 12},
}
"""The versions of requests that an instance uses. True stands for instances with transaction version 2."""


class Fenced(Exception):
    """Raised in an instance that a newer instance of the same transactional id has fenced."""


class TransactionalProducer:
    """The producer of one transactional id. It starts one instance after another until it is stopped."""

    def __init__(
        self,
        name: str,
        addresses: Sequence[tuple[str, int]],
        ledger: Ledger,
        transactions: TransactionLedger,
        rng: Random,
    ) -> None:
        self.name = name
        self.stopping = False
        """Set it to make ``run`` end after the newest instance has finished its transaction."""
        self._addresses = addresses
        self._ledger = ledger
        self._transactions = transactions
        self._rng = rng
        self._numbers = 0

    async def run(self, topic: str, partitions: Sequence[int]) -> None:
        """Produce until ``stopping`` is set. No transaction is open when this returns."""
        instances: list[asyncio.Task[None]] = []
        number = 0
        while not self.stopping:
            number += 1
            instance = _Instance(self, number, self._addresses, self._ledger, self._transactions, self._rng)
            await instance.take_over()
            instances.append(asyncio.ensure_future(instance.run(topic, partitions)))
            await asyncio.wait({instances[-1]}, timeout=self._rng.uniform(2.0, 12.0))
        await asyncio.gather(*instances)

    def next_number(self) -> int:
        """Return the number of the next transaction. Numbers continue from instance to instance."""
        self._numbers += 1
        return self._numbers


class _Instance(_User):
    """A process of an application with a transactional id."""

    def __init__(
        self,
        producer: TransactionalProducer,
        number: int,
        addresses: Iterable[tuple[str, int]],
        ledger: Ledger,
        transactions: TransactionLedger,
        rng: Random,
    ) -> None:
        super().__init__(f"{producer.name}.{number}", addresses, ledger, rng)
        self._producer = producer
        self._id = producer.name
        self._number = number
        self._transactions = transactions
        self._versions = _VERSIONS[rng.random() < 0.5]
        self._uses_version_2 = self._versions is _VERSIONS[True]
        self._producer_id = self._epoch = -1
        self._sequences: dict[int, int] = {}

    async def take_over(self) -> None:
        """Get a producer id and epoch, which fences older instances and aborts their transaction."""
        self._transactions.takes_over(self._id, self._number)
        request = InitProducerIdRequest(transactional_id=self._id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        response = await self._ask("init", request, lambda answer: answer.error_code)
        self._producer_id, self._epoch = response.producer_id, response.producer_epoch
        self._transactions.takes_charge(self._id, self._number)

    async def run(self, topic: str, partitions: Sequence[int]) -> None:
        """Run transactions until another instance takes over, or the producer stops."""
        try:
            while not self._producer.stopping:
                await self._transact(topic, partitions)
                await self.pause(0.3)
        except Fenced:
            pass
        finally:
            await self.client.close()

    async def _transact(self, topic: str, partitions: Sequence[int]) -> None:
        transaction = self._transactions.began(self._id, self._producer.next_number())
        try:
            chosen = [each for each in partitions if self.rng.random() < 0.8] or partitions[:1]
            if not self._uses_version_2:
                await self._add(topic, chosen)
            await asyncio.gather(*(self._produce(transaction, topic, each) for each in chosen))
            await self._commit_offset(transaction, topic)
            await self.pause(0.3)
            await self._end(transaction, commit=self.rng.random() < 0.75)
        finally:
            self._transactions.abandoned(transaction)

    async def _add(self, topic: str, partitions: Sequence[int]) -> None:
        topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=topics,
        )

        def first_error(answer: Any) -> int:
            results = answer.results_by_topic_v3_and_below[0].results_by_partition
            return next((each.partition_error_code for each in results if each.partition_error_code), 0)

        await self._ask("add partitions", request, first_error)

    async def _produce(self, transaction: Transaction, topic: str, partition: int) -> None:
        values = [f"{self._id}-{transaction.number}-{partition}-{i}" for i in range(self.rng.randint(1, 3))]
        self._transactions.sent(transaction, topic, partition, values)
        now_ms = EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(values)
        batch = build(
            [Record(i, now_ms, None, value.encode(), ()) for i, value in enumerate(values)],
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = ProduceRequest.PartitionProduceData(index=partition, records=bytes(batch))
        request = ProduceRequest(
            transactional_id=self._id,
            acks=-1,
            timeout_ms=3000,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
        )

        async def leader(fresh: bool) -> int:
            return await self.client.leader(topic, partition, fresh=fresh)

        def code_of(answer: Any) -> int:
            return int(answer.responses[0].partition_responses[0].error_code)

        await self._ask(f"produce {values[0]}", request, code_of, leader)

    async def _commit_offset(self, transaction: Transaction, topic: str) -> None:
        if not self._uses_version_2:
            request = AddOffsetsToTxnRequest(
                transactional_id=self._id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                group_id=self._id,
            )
            await self._ask("add offsets", request, lambda answer: answer.error_code)
        offset = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=transaction.number, committed_metadata=None
        )
        commit = TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=self._id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=[offset])],
        )

        async def coordinator(fresh: bool) -> int:
            return await self.client.coordinator(self._id)

        await self._ask("commit offset", commit, lambda answer: answer.topics[0].partitions[0].error_code, coordinator)

    async def _end(self, transaction: Transaction, *, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=commit,
        )
        self._transactions.ends(transaction, commit=commit)
        response = await self._ask("end", request, lambda answer: answer.error_code)
        self._transactions.ended(transaction)
        if self._uses_version_2:
            self._producer_id, self._epoch = response.producer_id, response.producer_epoch
            self._sequences.clear()

    async def _ask(
        self,
        what: str,
        request: Request,
        code_of: Callable[[Any], int],
        node_of: Callable[[bool], Any] | None = None,
    ) -> Any:
        """Send a request repeatedly until it succeeds, and return the response. ``what`` describes the request in
        reports.

        The request goes to the broker that ``await node_of(fresh)`` returns (``fresh`` is True after a failure), by
        default to the coordinator of the transactional id.

        Raises Fenced if a newer instance has taken over.
        """

        async def coordinator(fresh: bool) -> int:
            return await self.client.coordinator(self._id, _BY_TRANSACTIONAL_ID)

        fresh = False
        while True:
            is_zombie = self._transactions.is_zombie(self._id, self._number)
            try:
                node = await (node_of or coordinator)(fresh)
                answer = await self.client.send(request, node=node, version=self._versions.get(type(request)))
                code = ErrorCode(code_of(answer))
            except KafkaError as error:
                code = error.code
            if code is ErrorCode.NONE:
                if is_zombie:
                    self._transactions.served_zombie(self._id, self._number, what)
                return answer
            if code in _FENCED:
                self._transactions.refused(self._id, self._number, what, code)
                raise Fenced
            fresh = True
            await self.retry_later(what, code)


async def committed_number(client: Any, transactional_id: str, topic: str) -> int:
    """Return the number of the transaction whose offset the group of this transactional id has committed, or -1. Raises
    KafkaError if the request fails."""
    request = OffsetFetchRequest(
        group_id=transactional_id,
        topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])],
        require_stable=True,
    )
    answer = await client.send(request, node=await client.coordinator(transactional_id), version=7)
    found = answer.topics[0].partitions[0] if answer.topics else None
    code = answer.error_code or (found.error_code if found else 0)
    if code:
        raise KafkaError(ErrorCode(code))
    return int(found.committed_offset) if found else -1
