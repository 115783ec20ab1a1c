"""Records: browse from an offset or a time, follow new records, and produce one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.exceptions import HTTPException

from parley.broker.runtime.clock import SYSTEM_CLOCK
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.tools.cli.cluster_client import led_by
from parley.tools.cli.topic_offsets import EARLIEST, LATEST, list_offsets_of
from parley.tools.console.answers import ApiRequest, described_topic, integer_of, number, refuse
from parley.tools.console.cluster_view import ClusterView
from parley.tools.console.record_filter import RecordFilter
from parley.tools.console.record_reading import BY_NAME_VERSION_MAX, Scan, TimeSlice, fetch
from parley.tools.console.record_schemas import Decoded, RecordSchemas, SchemaSettings
from parley.tools.console.record_values import SeenRecord

LIMIT_MAX: Final = 500
SCANNED_MAX: Final = 100_000
SCAN_S: Final = 5.0
"""The time, in seconds, after which a search ends. The search nevertheless examines at least ``LIMIT_MAX`` records,
because decoding the beginning of a large batch can take this long."""
_LEADER_S: Final = 5.0
_LEADER_POLL_S: Final = 0.1
_NOT_WRITTEN: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Errors after which a record is produced again, for up to ``_LEADER_S``: Apache Kafka's brokers learn of a new topic
later than the client."""
_TAIL_WAIT_MS: Final = 500
_TAIL_AT_ONCE: Final = 200


class RecordWindow:
    """The API for the records of topics. It decodes them with schemas if the console has any. ``close`` cancels the
    schema look-ups."""

    def __init__(self, schemas: SchemaSettings | None) -> None:
        self._schemas = None if schemas is None else RecordSchemas(schemas)

    async def close(self) -> None:
        """Cancel the schema look-ups."""
        if self._schemas is not None:
            await self._schemas.close()

    async def browse(self, view: ClusterView, request: ApiRequest) -> dict[str, Any]:
        """Return records of a topic, and the offset of each partition at which a search may continue (``next``). Query:
        from (earliest, latest, offset, time), value (the offset, or the time in ms since 1970), partition, limit,
        filter.

        ``complete`` is False if the search ended at a limit. Raises BadFilter for a wrong filter, HTTPException (400)
        for another wrong value, and KafkaError if the topic cannot be read.
        """
        name = request.path_params["name"]
        limit = number(request, "limit", 50, 1, LIMIT_MAX)
        wanted = _filter_of(request)
        scan = await _begin(view.client, name, request, limit)
        found: list[dict[str, Any]] = []
        deadline = SYSTEM_CLOCK.monotonic() + SCAN_S
        while scan.scanned < SCANNED_MAX and SYSTEM_CLOCK.monotonic() < deadline and len(found) < limit:
            open_ = {index: at for index, at in scan.at.items() if at < scan.ends[index]}
            if not open_:
                break
            async for index, one, data in self._passing(name, fetch(view.client, name, open_, scan), wanted):
                scan.scanned += 1
                scan.at[index] = max(scan.at[index], one.offset + 1)
                if data is not None:
                    found.append(data)
                is_late = scan.scanned >= LIMIT_MAX and SYSTEM_CLOCK.monotonic() >= deadline
                if len(found) == limit or scan.scanned >= SCANNED_MAX or is_late:
                    break
            await asyncio.sleep(0)
        found.sort(key=lambda one: (one["timestamp"], one["partition"], one["offset"]))
        if request.query_params.get("from", "latest") == "latest":
            found.reverse()
        return {
            "records": found,
            "scanned": scan.scanned,
            "complete": all(at >= scan.ends[index] for index, at in scan.at.items()),
            "next": scan.at,
        }

    async def tail(self, view: ClusterView, request: ApiRequest) -> AsyncIterator[dict[str, Any]]:
        """Yield new records as they are produced. Query: partition, filter. Never ends. The first event is empty. If
        more records arrive at once than are shown, ``skipped`` counts the others. Raises BadFilter for a wrong filter,
        and KafkaError if the topic cannot be read."""
        name = request.path_params["name"]
        wanted = _filter_of(request)
        client = view.new_client()
        try:
            scan = await _begin(client, name, request, 0)
            scan = Scan(dict(scan.ends), {})
            yield {"records": [], "skipped": 0}
            while True:
                found: deque[dict[str, Any]] = deque(maxlen=_TAIL_AT_ONCE)
                count = 0
                fetched = fetch(client, name, dict(scan.at), scan, _TAIL_WAIT_MS)
                async for _, _, data in self._passing(name, fetched, wanted):
                    if data is not None:
                        count += 1
                        found.append(data)
                yield {"records": list(found), "skipped": count - len(found)}
        finally:
            await client.close()

    async def _passing(
        self, topic: str, fetched: AsyncIterator[tuple[int, list[Record]]], wanted: RecordFilter | None
    ) -> AsyncIterator[tuple[int, Record, dict[str, Any] | None]]:
        """Yield the partition of each fetched record, the record, and its data for the browser, or None if the filter
        rejects it."""
        time_slice = TimeSlice()
        async for index, piece in fetched:
            if self._schemas is not None:
                await self._schemas.look_up(topic, [(one.key, one.value) for one in piece])
            for one in piece:
                await time_slice.end_if_used()
                key, value = self._decoded(topic, one.key, True), self._decoded(topic, one.value, False)
                seen = SeenRecord(index, one, key, value)
                yield index, one, seen.as_data() if wanted is None or wanted.passes(seen.names()) else None

    def _decoded(self, topic: str, data: bytes | None, is_key: bool) -> Decoded | None:
        return None if self._schemas is None else self._schemas.decode(topic, data, is_key=is_key)


def _filter_of(request: ApiRequest) -> RecordFilter | None:
    text = request.query_params.get("filter")
    return RecordFilter(text) if text else None


async def _begin(client: Client, name: str, request: ApiRequest, limit: int) -> Scan:
    """Find the start and end offset of each partition for a request. Raises HTTPException (400) for a wrong query, and
    KafkaError if the topic cannot be read."""
    led = led_by((await described_topic(client, name)).topics)
    chosen = number(request, "partition", -1, -1)
    if chosen >= 0:
        led = {node: [(name, chosen)] for node, partitions in led.items() if (name, chosen) in partitions}
    ends = {where[1]: one.offset for where, one in (await list_offsets_of(client, led, LATEST)).items()}
    first = {where[1]: one.offset for where, one in (await list_offsets_of(client, led, EARLIEST)).items()}
    match request.query_params.get("from", "latest"):
        case "earliest":
            at = dict(first)
        case "latest":
            share = max(limit // max(len(ends), 1), 1) if not request.query_params.get("filter") else 5000
            at = {index: max(end - share, first[index]) for index, end in ends.items()}
        case "offset":
            offset = number(request, "value", 0)
            at = {index: min(max(offset, first[index]), end) for index, end in ends.items()}
        case "time":
            timed = await list_offsets_of(client, led, number(request, "value", 0))
            at = {where[1]: one.offset if one.offset >= 0 else ends[where[1]] for where, one in timed.items()}
        case other:
            raise HTTPException(400, f"from must be earliest, latest, offset or time, not {other!r}")
    return Scan(at, ends)


async def produce(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Produce a record, and return its partition and offset. Body: partition (0 by default), key and value (string or
    null), headers (an object with string values). Raises KafkaError if the broker rejects the record."""
    name, body = request.path_params["name"], await request.object()
    headers = body.get("headers", {})
    if not isinstance(headers, dict):
        raise HTTPException(400, "headers must be an object with string values")
    one = Record(
        0,
        SYSTEM_CLOCK.wall_ms(),
        _bytes(body.get("key"), "key"),
        _bytes(body.get("value"), "value"),
        tuple((key, _bytes(value, key)) for key, value in headers.items()),
    )
    partition = integer_of(body, "partition", 0)
    begun = SYSTEM_CLOCK.monotonic()
    while True:
        result = await _produced(view, name, partition, bytes(build([one])))
        code = ErrorCode(result.error_code)
        if code not in _NOT_WRITTEN or SYSTEM_CLOCK.monotonic() - begun > _LEADER_S:
            break
        await asyncio.sleep(_LEADER_POLL_S)
    refuse(code, result.error_message)
    view.forget()
    return {"partition": partition, "offset": result.base_offset}


async def _produced(view: ClusterView, name: str, partition: int, records: bytes) -> Any:
    node = await view.client.leader(name, partition, fresh=True)
    version = min(await view.client.version_for(ProduceRequest, node=node), BY_NAME_VERSION_MAX)
    data = ProduceRequest.TopicProduceData(
        name=name, partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=records)]
    )
    produced = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])
    answer = await view.client.send(produced, node=node, version=version)
    return answer.responses[0].partition_responses[0]


def _bytes(value: Any, name: str) -> bytes | None:
    if value is not None and not isinstance(value, str):
        raise HTTPException(400, f"{name} must be a string or null")
    return None if value is None else value.encode()
