"""The JSON of the answers, as Kafka Connect's REST API has it: same names, same order, nothing where it leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parley.pipeline.connect.herder import (
    ConnectorInfo,
    ConnectorStatus,
    LoggerLevel,
    Offsets,
    PluginInfo,
    ServerInfo,
    Status,
    TaskId,
)

Json = dict[str, Any]


def server(info: ServerInfo) -> Json:
    """Of ``GET /``."""
    return {"version": info.version, "commit": info.commit, "kafka_cluster_id": info.kafka_cluster_id}


def task_id(task: TaskId) -> Json:
    """A task by connector and number."""
    return {"connector": task.connector, "task": task.task}


def connector(info: ConnectorInfo) -> Json:
    """A connector as configured."""
    tasks = [task_id(task) for task in info.tasks]
    return {"name": info.name, "config": dict(info.config), "tasks": tasks, "type": info.kind}


def task(task: TaskId, config: Mapping[str, str]) -> Json:
    """A task as configured."""
    return {"id": task_id(task), "config": dict(config)}


def state(status: Status) -> Json:
    """Return the status of a connector or a task as JSON."""
    shown: Json = {"state": status.state.value, "worker_id": status.worker_id}
    if status.trace is not None:
        shown["trace"] = status.trace
    if status.version is not None:
        shown["version"] = status.version
    return shown


def task_state(number: int, status: Status) -> Json:
    """Return a task's id and status as JSON."""
    return {"id": number, **state(status)}


def connector_status(status: ConnectorStatus) -> Json:
    """Return the status of a connector and of its tasks as JSON."""
    tasks = [task_state(number, status.tasks[number]) for number in sorted(status.tasks)]
    return {"name": status.name, "connector": state(status.connector), "tasks": tasks, "type": status.kind}


def offsets(found: Offsets) -> Json:
    """How far a connector has come."""
    return {"offsets": [{"partition": partition, "offset": offset} for partition, offset in found]}


def topics(name: str, used: Sequence[str]) -> Json:
    """The topics a connector uses."""
    return {name: {"topics": list(used)}}


def plugin(info: PluginInfo) -> Json:
    """A class that can be named in a configuration."""
    return {"class": info.name, "type": info.kind, "version": info.version}


def logger(level: LoggerLevel) -> Json:
    """The level of a logger."""
    return {"level": level.level, "last_modified": level.last_modified}


def error(status: int, message: str) -> Json:
    """Whatever went wrong."""
    return {"error_code": status, "message": message}
