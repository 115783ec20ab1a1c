"""Every endpoint of the API: `ENDPOINTS` is the one table that the routes and the OpenAPI document are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from parley.pipeline.connect.herder import TargetState
from parley.pipeline.connect.rest import answers
from parley.pipeline.connect.rest.answers import Answer

__all__ = ["ENDPOINTS", "Endpoint"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path.

    `answers` are the names of schemas of the OpenAPI document by status; `query` the parameters with what they are for;
    `body` the schema of the request's body, if it takes one. Requests `among_workers` are signed by another worker.
    """

    method: str
    path: str
    summary: str
    answer: Answer
    answers: Mapping[int, str | None]
    query: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    among_workers: bool = False

    @property
    def is_admin(self) -> bool:
        """True if ``admin.listeners`` says where it is served."""
        return self.path.startswith("/admin/")


_C: Final = "/connectors/{connector}"
_P: Final = "/connector-plugins/{plugin}"
ENDPOINTS: Final = (
    Endpoint("GET", "/", "The version of this worker and the cluster it serves", answers.root, {200: "ServerInfo"}),
    Endpoint(
        "GET",
        "/health",
        "Whether this worker is ready (KIP-1017)",
        answers.health,
        dict.fromkeys((200, 500, 503), "Health"),
    ),
    Endpoint(
        "GET",
        "/connectors",
        "The names of all connectors, or more of each",
        answers.names,
        {200: "Connectors"},
        query={"expand": "`info`, `status` or both: an object by name with these parts, instead of the names"},
    ),
    Endpoint(
        "POST",
        "/connectors",
        "Create a connector",
        answers.create,
        {201: "ConnectorInfo", 400: "Error", 409: "Error"},
        body="CreateConnectorRequest",
    ),
    Endpoint("GET", _C, "A connector as configured", answers.connector, {200: "ConnectorInfo", 404: "Error"}),
    Endpoint("DELETE", _C, "Delete a connector", answers.delete, {204: None, 404: "Error"}),
    Endpoint("GET", f"{_C}/config", "The configuration of a connector", answers.config, {200: "Config", 404: "Error"}),
    Endpoint(
        "PUT",
        f"{_C}/config",
        "Create a connector, or give it another configuration",
        answers.put_config,
        {200: "ConnectorInfo", 201: "ConnectorInfo", 400: "Error"},
        body="Config",
    ),
    Endpoint(
        "PATCH",
        f"{_C}/config",
        "Change some keys of a connector's configuration; null takes a key out (KIP-477)",
        answers.patch_config,
        {200: "ConnectorInfo", 400: "Error", 404: "Error"},
        body="ConfigPatch",
    ),
    Endpoint(
        "GET",
        f"{_C}/status",
        "What a connector and its tasks do",
        answers.status,
        {200: "ConnectorStatus", 404: "Error"},
    ),
    Endpoint(
        "POST",
        f"{_C}/restart",
        "Start a connector again, and its tasks if wanted (KIP-745)",
        answers.restart,
        {202: "ConnectorStatus", 204: None, 404: "Error"},
        query={"includeTasks": "`true`: its tasks too", "onlyFailed": "`true`: only what has failed"},
    ),
    Endpoint("PUT", f"{_C}/pause", "Pause a connector", answers.to(TargetState.PAUSED, 202), {202: None, 404: "Error"}),
    Endpoint(
        "PUT", f"{_C}/resume", "Go on with a connector", answers.to(TargetState.STARTED, 202), {202: None, 404: "Error"}
    ),
    Endpoint(
        "PUT",
        f"{_C}/stop",
        "Stop a connector and give up its tasks (KIP-875)",
        answers.to(TargetState.STOPPED, 204),
        {204: None, 404: "Error"},
    ),
    Endpoint(
        "GET", f"{_C}/tasks", "The configurations of a connector's tasks", answers.tasks, {200: "Tasks", 404: "Error"}
    ),
    Endpoint(
        "POST",
        f"{_C}/tasks",
        "Among workers: the tasks of a connector, as its worker has worked them out; the request is signed",
        answers.put_tasks,
        {204: None, 400: "Error", 403: "Error"},
        body="TaskConfigs",
        among_workers=True,
    ),
    Endpoint(
        "PUT",
        f"{_C}/fence",
        "Among workers: end the transactions of a source's earlier tasks (KIP-618); the request is signed",
        answers.fence,
        {204: None, 400: "Error", 403: "Error", 404: "Error"},
        among_workers=True,
    ),
    Endpoint(
        "GET", f"{_C}/tasks/{{task}}/status", "What a task does", answers.task_status, {200: "TaskStatus", 404: "Error"}
    ),
    Endpoint(
        "POST",
        f"{_C}/tasks/{{task}}/restart",
        "Start a task again",
        answers.restart_task,
        {204: None, 404: "Error"},
    ),
    Endpoint("GET", f"{_C}/topics", "The topics that a connector uses (KIP-558)", answers.topics, {200: "Topics"}),
    Endpoint("PUT", f"{_C}/topics/reset", "Forget the topics that a connector used", answers.reset_topics, {202: None}),
    Endpoint(
        "GET",
        f"{_C}/offsets",
        "How far a connector has come (KIP-875)",
        answers.offsets,
        {200: "Offsets", 404: "Error"},
    ),
    Endpoint(
        "PATCH",
        f"{_C}/offsets",
        "Set offsets of a stopped connector",
        answers.alter_offsets,
        {200: "Message", 400: "Error", 404: "Error"},
        body="Offsets",
    ),
    Endpoint(
        "DELETE",
        f"{_C}/offsets",
        "Forget all offsets of a stopped connector",
        answers.reset_offsets,
        {200: "Message", 400: "Error", 404: "Error"},
    ),
    Endpoint(
        "GET",
        "/connector-plugins",
        "The plugins there are",
        answers.plugins,
        {200: "Plugins"},
        query={"connectorsOnly": "`false`: converters, transformations and predicates too (KIP-769)"},
    ),
    Endpoint(
        "GET",
        f"{_P}/config",
        "The keys a plugin takes (KIP-769)",
        answers.plugin_config,
        {200: "ConfigKeys", 404: "Error"},
    ),
    Endpoint(
        "PUT",
        f"{_P}/config/validate",
        "Look a configuration through",
        answers.validate,
        {200: "ConfigInfos", 400: "Error"},
        body="Config",
    ),
    Endpoint("GET", "/admin/loggers", "The loggers and their levels (KIP-495)", answers.loggers, {200: "Loggers"}),
    Endpoint(
        "GET", "/admin/loggers/{logger}", "The level of a logger", answers.logger, {200: "LoggerLevel", 404: "Error"}
    ),
    Endpoint(
        "PUT",
        "/admin/loggers/{logger}",
        "Set the level of a logger",
        answers.set_logger,
        {200: "LoggerNames", 204: None, 400: "Error", 404: "Error"},
        query={"scope": "`cluster`: in every worker (KIP-976); `worker`: in this one"},
        body="SetLogger",
    ),
)
"""Everything the API has."""
