"""The endpoints of Kafka Connect's REST API. They raise ``HerderError``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Body, Depends, Path, Query, Request, Response
from pydantic import BeforeValidator, TypeAdapter, ValidationError

from parley.pipeline.connect.config import ConfigInfos, ConfigKey
from parley.pipeline.connect.distributed.herder import Herder
from parley.pipeline.connect.herder_results import (
    BadRequest,
    ConnectorInfo,
    ConnectorStatus,
    Created,
    LoggerLevel,
    NotFound,
    PluginInfo,
    ServerInfo,
    Status,
    TargetState,
    TaskId,
)
from parley.pipeline.connect.rest import models
from parley.pipeline.connect.rest.routing import HerderRoute, problem_of
from parley.pipeline.service.requests import parse

_HEALTH_SECONDS: Final = 10.0
_TRIMMED: Final = "".join(map(chr, range(33)))
"""The characters that Java's ``trim`` removes."""
_INITIAL: Final = {"RUNNING": TargetState.STARTED, "PAUSED": TargetState.PAUSED, "STOPPED": TargetState.STOPPED}
_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    "default": {"model": models.Error, "description": "The request failed"}
}
_TASKS: Final = TypeAdapter(list[models.Config])


async def _herder(request: Request) -> Herder:  # otherwise FastAPI calls it in a thread
    herder: Herder = request.app.state.herder
    return herder


def _is_true(text: object) -> bool:
    return str(text).lower() == "true"


Served = Annotated[Herder, Depends(_herder)]
Flag = Annotated[bool, BeforeValidator(_is_true)]
Name = Annotated[str, Path(alias="connector")]
Plugin = Annotated[str, Path(alias="plugin")]
Logger = Annotated[str, Path(alias="logger")]
Number = Annotated[int, Path(alias="task", ge=-(2**31), lt=2**31)]
Patch = Annotated[models.ConfigPatch, Body()]

CONNECT: Final = APIRouter(route_class=HerderRoute, responses=_ERRORS, redirect_slashes=False)
ADMIN: Final = APIRouter(route_class=HerderRoute, responses=_ERRORS, redirect_slashes=False, prefix="/admin")
_C: Final = "/connectors/{connector}"
_P: Final = "/connector-plugins/{plugin}"
AMONG_WORKERS: Final = (("POST", f"{_C}/tasks"), ("PUT", f"{_C}/fence"))
"""Signed requests of workers. As in Kafka, the OpenAPI document leaves them out."""


@CONNECT.get("/", summary="The version of this worker and the cluster it serves")
async def root(herder: Served) -> ServerInfo:
    return await herder.server_info()


@CONNECT.get(
    "/health",
    summary="Whether this worker is ready (KIP-1017)",
    responses={500: {"model": models.Health}, 503: {"model": models.Health}},
)
async def health(herder: Served, response: Response) -> models.Health:
    if not herder.is_ready:
        response.status_code = 503
        return models.Health(status="starting", message="Worker is still starting up.")
    try:
        async with asyncio.timeout(_HEALTH_SECONDS):
            await herder.check()
    except Exception as error:
        response.status_code = 500
        text = f"Worker was unable to handle this request and may be unable to handle other requests. {error}".strip()
        return models.Health(status="unhealthy", message=text)
    return models.Health(status="healthy", message="Worker has completed startup and is ready to handle requests.")


# --- Connectors ---


@CONNECT.get(
    "/connectors",
    summary="The names of all connectors; with `expand`, an object by name with these parts",
    response_model=list[str] | dict[str, models.ConnectorParts],
)
async def names(
    herder: Served, expand: Annotated[Sequence[str], Query(description="`info`, `status` or both")] = ()
) -> Any:
    names = await herder.connectors()
    if not expand:
        return list(names)
    shown: dict[str, models.ConnectorParts] = {}
    for name in names:
        try:
            info = await herder.connector(name) if "info" in expand else None
            status = _status(await herder.status(name)) if "status" in expand else None
        except NotFound:
            continue  # it was deleted in the meantime
        shown[name] = models.ConnectorParts.model_validate({"info": info, "status": status})
    return shown


@CONNECT.post("/connectors", summary="Create a connector", status_code=201, response_model=models.ConnectorInfo)
async def create(herder: Served, response: Response, wanted: models.CreateConnectorRequest) -> ConnectorInfo:
    name = (wanted.name or "").strip(_TRIMMED)
    initial = None if wanted.initial_state is None else _INITIAL[wanted.initial_state]
    return _created(
        name, await herder.put_connector(name, _named(name, wanted.config), initial=initial, replace=False), response
    )


def _named(name: str, config: Mapping[str, str | None]) -> dict[str, str]:
    """Return the configuration with the connector's name. Raises BadRequest if it contains another name."""
    included = config.get("name")
    if included is not None and included != name:
        raise BadRequest(f"Connector name configuration ({included}) doesn't match connector name in the URL ({name})")
    return {**{key: value for key, value in config.items() if value is not None}, "name": name}


def _created(name: str, created: Created, response: Response) -> ConnectorInfo:
    response.status_code = 201 if created.is_new else 200
    if created.is_new:
        response.headers["location"] = f"/connectors/{quote(name, safe='')}"
    return created.info


@CONNECT.get(_C, summary="A connector as configured", response_model=models.ConnectorInfo)
async def connector(herder: Served, name: Name) -> ConnectorInfo:
    return await herder.connector(name)


@CONNECT.delete(_C, summary="Delete a connector", status_code=204)
async def delete(herder: Served, name: Name) -> None:
    await herder.delete_connector(name)


@CONNECT.get(f"{_C}/config", summary="The configuration of a connector")
async def config(herder: Served, name: Name) -> Mapping[str, str]:
    return (await herder.connector(name)).config


@CONNECT.put(
    f"{_C}/config",
    summary="Create a connector, or replace its configuration",
    response_model=models.ConnectorInfo,
    responses={201: {"model": models.ConnectorInfo}},
)
async def put_config(herder: Served, response: Response, name: Name, config: Patch) -> ConnectorInfo:
    return _created(name, await herder.put_connector(name, _named(name, config)), response)


@CONNECT.patch(
    f"{_C}/config",
    summary="Change some keys of a connector's configuration; null removes a key (KIP-477)",
    response_model=models.ConnectorInfo,
)
async def patch_config(herder: Served, response: Response, name: Name, patch: Patch) -> ConnectorInfo:
    return _created(name, await herder.patch_connector(name, patch), response)


@CONNECT.get(f"{_C}/status", summary="The state of a connector and its tasks")
async def status(herder: Served, name: Name) -> models.ConnectorStatus:
    return _status(await herder.status(name))


def _status(status: ConnectorStatus) -> models.ConnectorStatus:
    tasks = [_task_status(number, one) for number, one in sorted(status.tasks.items())]
    return models.ConnectorStatus.model_validate(
        {"name": status.name, "connector": status.connector, "tasks": tasks, "type": status.kind}
    )


def _task_status(number: int, status: Status) -> models.TaskStatus:
    return models.TaskStatus(
        id=number, state=status.state, worker_id=status.worker_id, trace=status.trace, version=status.version
    )


@CONNECT.post(
    f"{_C}/restart",
    summary="Restart a connector, and optionally its tasks (KIP-745)",
    status_code=202,
    response_model=models.ConnectorStatus,
    responses={204: {"description": "Only the connector was restarted"}},
)
async def restart(
    herder: Served,
    name: Name,
    include_tasks: Annotated[Flag, Query(alias="includeTasks", description="its tasks too")] = False,
    only_failed: Annotated[Flag, Query(alias="onlyFailed", description="only failed ones")] = False,
) -> Any:
    if not include_tasks and not only_failed:
        await herder.restart_connector(name)
        return Response(status_code=204)
    return _status(await herder.restart(name, include_tasks=include_tasks, only_failed=only_failed))


@CONNECT.put(f"{_C}/pause", summary="Pause a connector", status_code=202, response_class=Response)
async def pause(herder: Served, name: Name) -> None:
    await herder.set_target_state(name, TargetState.PAUSED)


@CONNECT.put(f"{_C}/resume", summary="Resume a connector", status_code=202, response_class=Response)
async def resume(herder: Served, name: Name) -> None:
    await herder.set_target_state(name, TargetState.STARTED)


@CONNECT.put(f"{_C}/stop", summary="Stop a connector and its tasks (KIP-875)", status_code=204)
async def stop(herder: Served, name: Name) -> None:
    await herder.set_target_state(name, TargetState.STOPPED)


# --- Tasks ---


@CONNECT.get(f"{_C}/tasks", summary="The configurations of a connector's tasks")
async def tasks(herder: Served, name: Name) -> list[models.Task]:
    found = await herder.task_configs(name)
    return [models.Task.model_validate({"id": task, "config": config}) for task, config in found]


@CONNECT.post(f"{_C}/tasks", status_code=204, include_in_schema=False)
async def put_tasks(herder: Served, name: Name, request: Request) -> None:
    await herder.put_task_configs(name, await request.body(), request.headers, _task_configs)


def _task_configs(body: bytes) -> list[dict[str, str]]:
    """Return the configurations of tasks in a request's body. Raises HTTPException (400) or BadRequest."""
    try:
        return _TASKS.validate_python(parse(body))
    except ValidationError as error:
        raise BadRequest(problem_of(error.errors(include_input=False))) from None


@CONNECT.put(f"{_C}/fence", status_code=204, include_in_schema=False)
async def fence(herder: Served, name: Name, request: Request) -> None:
    await herder.fence(name, await request.body(), request.headers)


@CONNECT.get(f"{_C}/tasks/{{task}}/status", summary="The state of a task")
async def task_status(herder: Served, name: Name, task: Number) -> models.TaskStatus:
    return _task_status(task, await herder.task_status(TaskId(name, task)))


@CONNECT.post(f"{_C}/tasks/{{task}}/restart", summary="Restart a task", status_code=204)
async def restart_task(herder: Served, name: Name, task: Number) -> None:
    await herder.restart_task(TaskId(name, task))


# --- Topics and offsets ---


@CONNECT.get(f"{_C}/topics", summary="The topics that a connector uses (KIP-558)")
async def topics(herder: Served, name: Name) -> dict[str, models.Topics]:
    return {name: models.Topics(topics=list(await herder.active_topics(name)))}


@CONNECT.put(
    f"{_C}/topics/reset", summary="Reset the topics that a connector used", status_code=202, response_class=Response
)
async def reset_topics(herder: Served, name: Name) -> None:
    await herder.reset_active_topics(name)


@CONNECT.get(f"{_C}/offsets", summary="The offsets of a connector (KIP-875)")
async def offsets(herder: Served, name: Name) -> models.Offsets:
    found = await herder.offsets(name)
    return models.Offsets.model_validate(
        {"offsets": [{"partition": partition, "offset": offset} for partition, offset in found]}
    )


@CONNECT.patch(f"{_C}/offsets", summary="Change the offsets of a stopped connector")
async def alter_offsets(herder: Served, name: Name, wanted: models.Offsets) -> models.Message:
    if not wanted.offsets:
        raise BadRequest("Partitions / offsets need to be provided for an alter offsets request")
    offsets = [(one.partition, one.offset) for one in wanted.offsets if one.partition is not None]
    if len(offsets) < len(wanted.offsets):
        raise BadRequest("Partition objects cannot be null")
    return models.Message(message=await herder.alter_offsets(name, offsets))


@CONNECT.delete(f"{_C}/offsets", summary="Reset all offsets of a stopped connector")
async def reset_offsets(herder: Served, name: Name) -> models.Message:
    return models.Message(message=await herder.alter_offsets(name, None))


# --- Plugins ---


@CONNECT.get("/connector-plugins", summary="The available plugins", response_model=list[models.Plugin])
async def plugins(
    herder: Served,
    connectors_only: Annotated[
        Flag,
        Query(
            alias="connectorsOnly",
            description="`false`: converters, transformations and predicates too (KIP-769)",
        ),
    ] = True,
) -> Sequence[PluginInfo]:
    return await herder.plugins(connectors_only=connectors_only)


@CONNECT.get(
    f"{_P}/config", summary="The configuration keys of a plugin (KIP-769)", response_model=list[models.ConfigKey]
)
async def plugin_config(herder: Served, plugin: Plugin) -> Sequence[ConfigKey]:
    return await herder.plugin_config(plugin)


@CONNECT.put(f"{_P}/config/validate", summary="Validate a configuration", response_model=models.ConfigInfos)
async def validate(herder: Served, plugin: Plugin, config: Patch) -> ConfigInfos:
    named = config.get("connector.class")
    if named is not None and _simple(named) != _simple(plugin):
        raise BadRequest(f"Included connector type {named} does not match request type {plugin}")
    return await herder.validate(plugin, config)


def _simple(plugin: str) -> str:
    """Return the simple name of a connector's class, without its package and without the ending ``Connector``."""
    return plugin.rpartition(".")[2].removesuffix("Connector")


# --- Loggers ---


@ADMIN.get("/loggers", summary="The loggers and their levels (KIP-495)")
async def loggers(herder: Served) -> dict[str, LoggerLevel]:
    return dict(sorted(herder.loggers.all().items()))


@ADMIN.get("/loggers/{logger}", summary="The level of a logger")
async def logger(herder: Served, name: Logger) -> LoggerLevel:
    level = herder.loggers.all().get(name)
    if level is None:
        raise NotFound(f"Logger {name} not found.")
    return level


@ADMIN.put(
    "/loggers/{logger}",
    summary="Set the level of a logger",
    response_model=list[str],
    responses={204: {"description": "All workers were notified"}},
)
async def set_logger(
    herder: Served,
    name: Logger,
    wanted: models.SetLogger,
    scope: Annotated[
        str, Query(description="`cluster`: in all workers (KIP-976); `worker`: in this worker")
    ] = "worker",
) -> Any:
    if wanted.level is None:
        raise BadRequest("Desired 'level' parameter was not specified in request.")
    if scope.lower() == "cluster":
        await herder.set_cluster_logger(name, wanted.level)
        return Response(status_code=204)
    return herder.loggers.set(name, wanted.level)
