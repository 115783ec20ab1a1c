"""Finds out why the cluster acknowledges no record. librdkafka retries these errors without a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from parley.tools.cli import leaderless
from parley.tools.cli.librdkafka import Connection

if TYPE_CHECKING:
    from parley.protocol.client import Client


@dataclass(frozen=True, slots=True)
class Silence:
    """A producer whose records are not acknowledged: its connection, its topic, and whether it needs a producer id."""

    connection: Connection
    topic: str
    is_idempotent: bool

    def reason(self) -> str:
        """Return why no record is acknowledged, without a period. Empty if the reason is unknown, or if the brokers do
        not respond."""
        if self.connection.is_down:  # the connection has already warned
            return ""
        return self.connection.ask(self._ask) or ""

    async def _ask(self, client: Client) -> str:
        from parley.protocol.errors import ErrorCode
        from parley.protocol.messages.producers import InitProducerIdRequest

        topic = (await client.metadata([self.topic])).topics[0]
        if leaderless_partitions := leaderless.described_in(topic):
            return leaderless_partitions
        if not self.is_idempotent:
            return ""
        answer = await client.send(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0))
        if not answer.error_code:
            return ""
        return (
            f"the cluster assigns no producer id ({ErrorCode(answer.error_code).name}): its coordination store may be "
            "down, see `parley doctor`. A producer with --producer-property enable.idempotence=false needs no id"
        )
