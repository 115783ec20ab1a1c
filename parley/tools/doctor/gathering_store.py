"""Examine a coordination store: its owner, its sessions and its speed. Changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Final
from urllib.parse import parse_qs

from parley.broker.controller.stored_metadata import BROKERS, CLUSTER, TERMS
from parley.broker.metadata.encoding import registration_from_bytes
from parley.broker.metadata.terms import terms_from_bytes
from parley.consensus.backend import Backend
from parley.consensus.errors import CoordinationError
from parley.consensus.recipes.keyvalue import FOLDER as DATA
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.registry import BackendFactory, backend_factory, configured_url
from parley.consensus.store_move.store_lookup import open_existing
from parley.consensus.urls import parse_servers, split_url
from parley.tools.coordination.status import status_of
from parley.tools.doctor.facts import Store
from parley.tools.doctor.gathering_http import NoPage, fetched, unverified_tls

STORE_S: Final = 20.0
"""The time, in seconds, after which a store that has not responded to all requests counts as not responding."""
_READS: Final = 5
_HTTP_PORTS: Final = {"etcd": 2379, "consul": 8500}
"""The stores whose servers report their time over HTTP, and their default ports."""
_CLOCK_S: Final = 3.0


def shown_url(url: str) -> str:
    """Return the URL without its password, and without its options, which may contain secrets."""
    scheme, separator, rest = url.partition("?")[0].partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


async def store_of(given: Mapping[str, str], limit_s: float) -> Store:
    """Examine the store of a broker's configuration. Errors of the store are recorded in the result, never raised."""
    try:
        url = configured_url(given)
    except CoordinationError as error:
        return Store("", str(error), type(error).__name__)
    shown = shown_url(url)
    try:
        async with asyncio.timeout(limit_s):
            found = await _opened(url, shown, backend_factory(given))
            ahead = await asyncio.to_thread(_clock_ahead, url)
            return replace(found, clock_ahead_s=ahead)
    except TimeoutError:
        return Store(shown, f"no response within {limit_s:g} s", "TimeoutError")
    except CoordinationError as error:
        return Store(shown, str(error) or type(error).__name__, type(error).__name__)


async def _opened(url: str, shown: str, backend_at: BackendFactory) -> Store:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    backend = await open_existing(url, backend_at)
    try:
        opened_s = loop.time() - begun
        read_s = await _read_time(backend)
        status = await status_of(backend, shown)
        stored = KeyValue(backend)
        registered = [registration_from_bytes(each.value) async for each in stored.entries(BROKERS)]
        terms = await stored.get(TERMS)
    finally:
        await backend.close()
    return Store(
        shown,
        identity=status.identity,
        cluster_id=status.cluster_id,
        state=status.state,
        controller=status.controller,
        members={
            each.broker.broker_id: [f"{at.host}:{at.port}" for at in each.broker.endpoints] for each in status.members
        },
        open_s=opened_s,
        read_s=read_s,
        registered={each.broker_id: len(each.log_dirs) for each in registered},
        terms=() if terms is None else terms_from_bytes(terms.value),
        keys={kind: count for kind, (count, _) in status.sizes.items()},
    )


async def _read_time(backend: Backend) -> float:
    loop = asyncio.get_running_loop()
    times = []
    for _ in range(_READS):
        begun = loop.time()
        await backend.get(f"{DATA}{CLUSTER}")
        times.append(loop.time() - begun)
    return median(times)


def _clock_ahead(url: str) -> float | None:
    """Return how many seconds the clock of the store's first server is ahead. Returns None if the store does not report
    its time over HTTP. Blocks."""
    parts = split_url(url)
    if parts.scheme not in _HTTP_PORTS:
        return None
    host, port = parse_servers(parts.servers, default_port=_HTTP_PORTS[parts.scheme], source=url, expected="a host")[0]
    is_tls = "ca-file" in parse_qs(url.partition("?")[2])
    try:
        page = f"{'https' if is_tls else 'http'}://{host}:{port}/v1/status/leader"
        return fetched(page, _CLOCK_S, unverified_tls()).clock_ahead_s
    except NoPage:
        return None
