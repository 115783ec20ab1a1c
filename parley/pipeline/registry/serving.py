"""Runs a registry in the current event loop: its topic, its API and its listeners, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from random import SystemRandom

from parley.pipeline.client.cluster import Connection
from parley.pipeline.connect.distributed.leader_writes import TransactionalWrites
from parley.pipeline.connect.distributed.log import TopicLog
from parley.pipeline.connect.distributed.topics import TopicPlan
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.registry.api import RegistryApi
from parley.pipeline.registry.config import RegistryConfig
from parley.pipeline.registry.store import Store
from parley.pipeline.service.login import BasicLogin, DemandLogin
from parley.pipeline.service.server import RestServer
from parley.pipeline.service.tls import server_context
from parley.protocol.client import Client
from parley.protocol.errors import KafkaError
from parley.protocol.security.client_security import ClientSecurity

SECTION = "SchemaRegistry"
"""The section of the JAAS file that lists the users."""
_CLIENT_ID = "schema-registry"
_IF_TAKEN = (
    "Is another registry running? Stop it, or give this one another address (--listeners http://127.0.0.1:8082)."
)
_log = logging.getLogger(__name__)


async def run_registry(config: RegistryConfig, stopping: asyncio.Event, on_ready: Callable[[str], None]) -> None:
    """Serve the registry until ``stopping`` is set. Calls ``on_ready`` with its URL once it accepts requests.

    Raises ServiceError if it cannot start.
    """
    listeners = config.listeners
    tls = server_context(config.given, "", listeners)
    login = None if config.jaas_file is None else BasicLogin(config.jaas_file, SECTION)
    security = config.security.read()
    plan = await _plan(config, security)
    log = TopicLog(config.bootstrap, plan, client_id=_CLIENT_ID, security=security, now_ms=_now_ms)
    connection = Connection(bootstrap=config.bootstrap, client_id=_CLIENT_ID, security=config.security)
    writes = TransactionalWrites(connection, plan.name, f"schema-registry-{plan.name}", on_lost=lambda: None)
    store = Store(log, writes, SystemRandom())
    async with RestServer(listeners, tls, if_taken=_IF_TAKEN) as server:
        try:
            await store.start()
            api = RegistryApi(store, config.level)
            server.serve(api if login is None else DemandLogin(api, login))
            first = server.addresses[0]
            on_ready(f"{first.protocol}://{first.host or 'localhost'}:{first.port}")
            await stopping.wait()
        finally:
            await store.stop()


async def _plan(config: RegistryConfig, security: ClientSecurity) -> TopicPlan:
    """Return the plan for the topic. If there are fewer brokers than configured replicas, it has one replica for each
    broker.

    Raises ConnectError if no broker responds.
    """
    client = Client(config.bootstrap, client_id=_CLIENT_ID, security=security)
    try:
        brokers = len((await client.metadata([])).brokers)
    except KafkaError as error:
        raise ConnectError(f"no broker of {config.bootstrap} responds: {error}") from error
    finally:
        await client.close()
    wanted = config["kafkastore.topic.replication.factor"]
    if brokers < wanted:
        _log.warning("the topic of schemas gets %d replicas, not %d, if it is created now", brokers, wanted)
    return TopicPlan(
        config["kafkastore.topic"], "kafkastore.topic", 1, max(1, min(brokers, wanted)), {}, contents="schemas"
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
