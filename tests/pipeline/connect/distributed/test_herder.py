"""The errors of a herder's requests: only ``HerderError`` reaches the REST API as a message without a traceback."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import create_autospec

import pytest

from parley.pipeline.connect.connector import SourceConnector
from parley.pipeline.connect.connector_offsets import alter_source_offsets
from parley.pipeline.connect.distributed.configs import ConfigStore
from parley.pipeline.connect.distributed.herder import Herder, HerderSettings
from parley.pipeline.connect.distributed.log import MemoryLog
from parley.pipeline.connect.distributed.membership import Alone
from parley.pipeline.connect.distributed.statuses import StatusStore
from parley.pipeline.connect.errors import RetriableError
from parley.pipeline.connect.herder_results import HerderError, TargetState
from parley.pipeline.connect.offset_stores import OffsetStore
from parley.pipeline.connect.plugins import Plugins
from parley.pipeline.connect.worker import Worker

SILENT = RetriableError("the offsets topic did not respond")


def test_a_reset_fails_with_a_message_if_the_stored_offsets_cannot_be_read() -> None:
    store: Any = create_autospec(OffsetStore, instance=True)
    store.all.side_effect = SILENT
    with pytest.raises(HerderError, match="Failed to alter offsets for connector src: the offsets topic did not"):
        alter_source_offsets(store, create_autospec(SourceConnector, instance=True), "src", {}, None)


async def test_offsets_that_the_worker_cannot_read_or_change_are_a_herder_error() -> None:
    worker: Any = create_autospec(Worker, instance=True)
    worker.offsets.side_effect = worker.alter_offsets.side_effect = SILENT
    worker.writes_exactly_once.return_value = False
    configs, statuses = ConfigStore(MemoryLog()), StatusStore(MemoryLog())
    settings = HerderSettings("http://localhost:8083/", "cluster")
    herder = Herder(settings, lambda _: worker, Plugins(""), configs, statuses, Alone(), now_ms=lambda: 0)
    running = asyncio.create_task(herder.run())
    try:
        await herder._share.joined.wait()
        await configs.put_connector("src", {"connector.class": "FileStreamSource"}, TargetState.STOPPED)
        with pytest.raises(HerderError, match="Failed to read offsets for connector src: the offsets topic did not"):
            await herder.offsets("src")
        with pytest.raises(HerderError, match="Failed to alter offsets for connector src: the offsets topic did not"):
            await herder.alter_offsets("src", None)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
