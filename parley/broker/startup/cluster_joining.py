"""A phase of startup: makes the broker a member of its cluster. A new cluster adopts the topics found on disk."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from parley.broker.controller.elections.replica_conditions import is_older_copy
from parley.broker.controller.log_adoption import FoundPartition, adopt_partitions
from parley.broker.controller.stored_metadata import BROKERS
from parley.broker.membership.joining import DuplicateBrokerId
from parley.broker.membership.known_stores import with_advice
from parley.broker.metadata.encoding import registration_from_bytes
from parley.broker.metadata.topic_names import INTERNAL_TOPICS
from parley.broker.startup.composition import Parts
from parley.broker.startup.environment import Environment
from parley.consensus.errors import CoordinationError, WrongStore
from parley.protocol.uuids import UUID
from parley.storage.partition_metadata import encode_id

_log = logging.getLogger(__name__)

COORDINATION = "coordination"
"""The name under which ``/healthz`` reports that the broker is no longer a member of the cluster."""

STORE = "coordination store"
"""The name under which ``/healthz`` reports an outage of the store."""


async def report_changed_directories(parts: Parts) -> None:
    """Log how the log directories differ from the last registration. The controller learns this from the new
    registration. Does nothing if the store does not respond."""
    try:
        entry = await parts.lifecycle.store.get(f"{BROKERS}{parts.identity.broker_id:010d}")
    except CoordinationError:
        return  # registration itself waits for the store
    if entry is None:
        return
    known, joining = registration_from_bytes(entry.value), parts.lifecycle.registration
    if known.epoch < joining.kept_epoch:
        return  # the store was rolled back: it may list directories that this broker used earlier
    if is_older_copy(known, joining):
        _log.warning(
            "the log directories of this broker were replaced by an older copy: fetching the replicas again from other "
            "brokers",
            extra={"epoch_on_disk": joining.kept_epoch, "epoch_registered": known.epoch},
        )
    present = {directory.id for directory in parts.logs.directories}
    missing = [encode_id(each) for each in known.log_dirs if each not in present]
    offline = any(directory.id is None for directory in parts.logs.directories)
    if missing and not offline:
        new = [str(directory) for directory in parts.logs.directories if directory.is_new]
        _log.error(
            "log directories of this broker are missing: they were emptied or replaced, or log.dirs has changed; "
            "fetching their replicas again from other brokers",
            extra={"missing": ",".join(missing), **({"new": ",".join(new)} if new else {})},
        )


async def join_cluster(environment: Environment, parts: Parts) -> None:
    """Join the cluster, and wait until the metadata shows this broker as alive.

    Raises the error that ends the membership before that, for example DuplicateBrokerId if another live broker uses
    this id.
    """
    environment.health.starting("registering with the controller")
    undo = environment.undo
    undo.push_async_callback(parts.peers.close)
    await report_changed_directories(parts)
    undo.push_async_callback(environment.membership.close)
    undo.push_async_callback(environment.tasks.close)
    reported_here = (CoordinationError, DuplicateBrokerId)
    life = environment.membership.start(parts.lifecycle.run(), name="membership", expected=reported_here)
    registered = asyncio.ensure_future(parts.lifecycle.until_registered())
    try:
        await asyncio.wait({life, registered}, return_when=asyncio.FIRST_COMPLETED)
        if not registered.done():
            life.result()
    finally:
        registered.cancel()  # even if startup is cancelled, so that no task is left behind
    environment.health.check(STORE, lambda: parts.lifecycle.outage.description)
    life.add_done_callback(lambda life: _membership_ended(environment, life))


def _membership_ended(environment: Environment, life: asyncio.Task[None]) -> None:
    """Fail the broker if its membership ends before the broker is stopped: the cluster can no longer use it."""
    if not life.cancelled() and (error := life.exception()) is not None:
        if isinstance(error, WrongStore):
            error = with_advice(error, list(map(Path, environment.config.data_dirs)))
        _log.error("the broker is no longer a member of the cluster", extra={"reason": str(error)})
        environment.health.trouble(COORDINATION, f"no longer a member of the cluster: {error}", fatal=True)
        environment.failed.set()


async def adopt_topics(environment: Environment, parts: Parts) -> None:
    """Register the partitions found on disk in the metadata of the new cluster. Raises the errors of
    ``Controller.submit``."""
    environment.health.starting("adopting the topics found on disk")
    found = [
        FoundPartition(log.topic, log.partition, log.topic_id, -1 if epoch is None else epoch)
        for log in parts.logs.logs
        for epoch in (log.latest_epoch,)
    ]
    if not found:
        return
    adopted = await parts.lifecycle.controller.submit(
        lambda image: adopt_partitions(
            image,
            found,
            broker_id=parts.identity.broker_id,
            new_id=lambda: UUID(int=environment.rng.getrandbits(128), version=4),
            compacted=INTERNAL_TOPICS,
        ),
        waits_for_store=True,
    )
    _log.warning(
        "the new cluster adopted the topics found on disk; their settings are not on disk, so they keep all records "
        "(retention.ms=-1) until you set them with `parley configs`",
        extra={"topics": ",".join(adopted)},
    )
