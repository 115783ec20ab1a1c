"""A user's view of a cluster: a client, and a cache of recent reads.

Several pages request the same data at the same time. The data is read once and kept for ``FRESH_S``, or for ten times
as long as reading took, so that a very large cluster is not read constantly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar, cast

from parley.broker.runtime.clock import SYSTEM_CLOCK
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.background_work import DescribeBackgroundWorkRequest, DescribeBackgroundWorkResponse
from parley.protocol.messages.coordination import STATUS, MigrateCoordinationRequest
from parley.protocol.messages.metadata import MetadataResponse
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli import log_dirs
from parley.tools.cli.cluster import describe as describe_cluster
from parley.tools.cli.cluster_client import led_by
from parley.tools.cli.groups.listing import ListedGroup, list_groups
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.reassign.requests import ongoing
from parley.tools.cli.reassign.throttles import Ongoing
from parley.tools.cli.topic_offsets import LATEST, list_offsets_of
from parley.tools.console.answers import refuse
from parley.tools.console.history import History
from parley.tools.console.pace import Pace
from parley.tools.console.settings import ConsoleSettings

T = TypeVar("T")
BackgroundWork: TypeAlias = DescribeBackgroundWorkResponse.Work
FRESH_S: Final = 2.0
_TIMES_ITS_COST: Final = 10
_UNREACHABLE: Final = (ErrorCode.NETWORK_EXCEPTION, ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT)
_TIMEOUT_S: Final = 15.0


async def optional(reading: Awaitable[T], default: T) -> T:
    """Return the result of ``reading``, or ``default`` if it raises KafkaError or CommandError, for example because the
    user may not read the data or brokers do not respond. For data that a page can do without."""
    try:
        return await reading
    except (KafkaError, CommandError):
        return default


@dataclass(slots=True)
class _Kept:
    value: Any = None
    until: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ClusterView:
    """A cluster as one user sees it. ``close`` closes its connections. Methods that read from the cluster raise
    KafkaError or CommandError if brokers do not respond or reject the request."""

    def __init__(self, settings: ConsoleSettings, user: str = "", password: str = "") -> None:
        """Create a view with its own client. Raises ValueError if the security settings are invalid."""
        self.user = user
        self._settings = settings
        self._security = settings.security(user, password)
        self.client = self.new_client()
        self.history = History()
        self.pace: Pace[tuple[str, int, int | None]] = Pace()
        """The progress of moves, by topic, partition, and the broker of a move between log directories (otherwise
        None)."""
        self.down_since: dict[int, int] = {}
        """The time, in ms since 1970, at which this console first found that a broker was down, by broker."""
        self._kept: dict[str, _Kept] = {}

    def new_client(self) -> Client:
        """Return a new client with the user's permissions, for requests that block at a broker. The caller closes
        it."""
        return Client(self._settings.bootstrap, client_id="parley-console", security=self._security, timeout=_TIMEOUT_S)

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()

    async def metadata(self) -> MetadataResponse:
        """Return the brokers, topics and partitions."""
        return await self.kept("metadata", self.client.metadata)

    async def cluster(self) -> Any:
        """Return the brokers with their racks, including fenced brokers if the cluster supports that."""
        return await self.kept("cluster", lambda: describe_cluster(self.client, fenced=True))

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the end offset of every partition that has a leader. Omits partitions whose leader reports an
        error."""

        async def read() -> dict[TopicPartition, int]:
            found = await list_offsets_of(self.client, led_by((await self.metadata()).topics), LATEST)
            return {where: one.offset for where, one in found.items() if not one.error}

        return await self.kept("ends", read)

    async def groups(self) -> list[ListedGroup]:
        """Return all groups, sorted by name."""
        return await self.kept("groups", lambda: list_groups(self.client))

    async def reassignments(self) -> dict[TopicPartition, Ongoing]:
        """Return the reassignments in progress, by partition."""

        async def read() -> dict[TopicPartition, Ongoing]:
            return await ongoing(self.client)

        return await self.kept("reassignments", read)

    async def directories(self) -> dict[int, Sequence[Any]]:
        """Return the log directories of each running broker."""

        async def read() -> dict[int, Sequence[Any]]:
            _, found = await log_dirs.directories(self.client, [], [])
            return dict(found)

        return await self.kept("directories", read)

    async def background_work(self) -> list[BackgroundWork] | None:
        """Return the compactions, verifications, healings and recoveries of logs in progress. Skips brokers that do not
        respond. Returns None if no broker reports its work. Raises KafkaError if the user may not see it."""

        async def of(broker: int) -> list[BackgroundWork] | None:
            try:
                answer = await self.client.send(DescribeBackgroundWorkRequest(), node=broker)
            except KafkaError as error:
                if error.code is ErrorCode.UNSUPPORTED_VERSION or error.code in _UNREACHABLE:
                    return None
                raise
            refuse(answer.error_code, answer.error_message)
            return cast("list[BackgroundWork]", answer.works)

        async def read() -> list[BackgroundWork] | None:
            brokers = [one.node_id for one in (await self.metadata()).brokers]
            found = [works for works in await asyncio.gather(*map(of, brokers)) if works is not None]
            return [work for works in found for work in works] if found else None

        return await self.kept("background_work", read)

    async def store_move(self) -> Any | None:
        """Return the state of the latest move to another coordination store, or None if the cluster is not a Parley
        cluster. The caller must check the error code of the result."""

        async def read() -> Any | None:
            try:
                return await self.client.send(MigrateCoordinationRequest(action=STATUS))
            except KafkaError as error:
                if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                    raise
                return None

        return await self.kept("store_move", read)

    async def kept(self, name: str, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``read``, cached under ``name``. Calls ``read`` if there is no result or it is too old.
        An error of ``read`` is raised and not cached."""
        kept = self._kept.setdefault(name, _Kept())
        async with kept.lock:
            begun = SYSTEM_CLOCK.monotonic()
            if begun >= kept.until:
                kept.value = await read()
                now = SYSTEM_CLOCK.monotonic()
                kept.until = now + max(FRESH_S, _TIMES_ITS_COST * (now - begun))
            return cast("T", kept.value)

    def forget(self) -> None:
        """Make the next reads query the cluster again. Call this after a change."""
        for kept in self._kept.values():
            kept.until = 0.0
