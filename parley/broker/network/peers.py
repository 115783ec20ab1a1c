"""The other brokers of the cluster, as this one speaks to them: over the listener for brokers.

A connection is made when it is first needed, and again after it has been lost. Whoever holds a request open for long
(a fetcher, the follower of the metadata) has a connection of its own, named by a purpose: nobody waits behind it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from parley.broker.metadata.current import Metadata
from parley.broker.metadata.types import Endpoint
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.schema import Request


class Peers:
    """Clients for the other brokers, by id and purpose."""

    def __init__(
        self, broker_id: int, metadata: Metadata, listener: str, *, timeout_s: float, connect_timeout_s: float
    ) -> None:
        """``listener`` is the name of the listener for brokers; ``timeout_s`` bounds a request that names no time of
        its own (``request.timeout.ms`` between brokers), ``connect_timeout_s`` a connect."""
        self._metadata = metadata
        self._listener = listener
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._client_id = f"broker-{broker_id}"
        self._clients: dict[tuple[int, str], tuple[Endpoint, Client]] = {}
        self._closing: set[asyncio.Future[None]] = set()

    def endpoint(self, broker_id: int) -> Endpoint:
        """Where brokers reach this one. Raises BROKER_NOT_AVAILABLE where the metadata does not know."""
        broker = self._metadata.image.brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint(self._listener)
        if endpoint is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"no address of broker {broker_id} is known")
        return endpoint

    def client(self, broker_id: int, purpose: str = "") -> Client:
        """The client for a broker, to be used at once: it is another one when the broker's address changes.

        Raises BROKER_NOT_AVAILABLE.
        """
        endpoint = self.endpoint(broker_id)
        known = self._clients.get((broker_id, purpose))
        if known is not None and known[0] == endpoint:
            return known[1]
        if known is not None:
            self._close_soon(known[1])
        client = self.client_at(endpoint, purpose)
        self._clients[broker_id, purpose] = (endpoint, client)
        return client

    def client_at(self, endpoint: Endpoint, purpose: str = "") -> Client:
        """A new client for an address, to be closed by the caller."""
        name = f"{self._client_id}-{purpose}" if purpose else self._client_id
        return Client(
            [(endpoint.host, endpoint.port)],
            client_id=name,
            timeout=self._timeout_s,
            connect_timeout=self._connect_timeout_s,
        )

    async def ask(
        self,
        broker_id: int,
        request: Request,
        *,
        version: int | None = None,
        purpose: str = "",
        timeout_s: float | None = None,
    ) -> Any:
        """Ask one broker. Raises as :meth:`client` and ``Client.send`` do."""
        return await self.client(broker_id, purpose).send(request, version=version, timeout=timeout_s)

    async def ask_controller(self, request: Request, *, version: int | None = None, purpose: str = "") -> Any:
        """Ask the controller that the metadata names.

        Raises NOT_CONTROLLER where it names none, and as :meth:`ask`. The answer's own errors are for the caller.
        """
        controller = self._metadata.image.controller_id
        if controller < 0:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "the cluster has no controller at this moment")
        return await self.ask(controller, request, version=version, purpose=purpose)

    def lost_at(self, broker_id: int) -> float | None:
        """When a connection to a broker ended by itself that is not made again yet, in the loop's time; else None."""
        lost = (client.lost_at for (known, _), (_, client) in self._clients.items() if known == broker_id)
        return max((at for at in lost if at is not None), default=None)

    def _close_soon(self, client: Client) -> None:
        closing = asyncio.ensure_future(client.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close every connection; requests under way fail with NETWORK_EXCEPTION. Idempotent."""
        clients, self._clients = self._clients, {}
        await asyncio.gather(*(client.close() for _, client in clients.values()), *self._closing)
