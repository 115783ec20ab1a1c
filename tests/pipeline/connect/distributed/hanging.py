"""A connector whose `start` does not return."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from parley.pipeline.connect import ConfigDef, SinkConnector, SinkRecord, SinkTask

LET_GO = threading.Event()


class HangingTask(SinkTask):
    def put(self, records: Sequence[SinkRecord]) -> None:
        return


class Hanging(SinkConnector):
    """A connector whose `start` waits until the test releases it."""

    task_class = HangingTask
    config_def = ConfigDef()

    def start(self, props: Mapping[str, str]) -> None:
        super().start(props)
        LET_GO.wait()
