"""What each endpoint asks of the herder, and what it answers.

An answer is a coroutine from the request and the herder to a `Reply`; whatever is wrong it raises as `HerderError`,
whose status the answer then has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request

from parley.pipeline.connect.herder import BadRequest, Created, Herder, NotFound, TargetState, TaskId
from parley.pipeline.connect.rest import bodies, shapes


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: JSON, or nothing (None) where the status says it all."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


_HEALTH_SECONDS: Final = 10.0

Answer = Callable[[Request, Herder], Awaitable[Reply]]


async def root(_: Request, herder: Herder) -> Reply:
    return Reply(shapes.server(await herder.server_info()))


async def health(_: Request, herder: Herder) -> Reply:
    if not herder.is_ready:
        return Reply({"status": "starting", "message": "Worker is still starting up."}, 503)
    try:
        async with asyncio.timeout(_HEALTH_SECONDS):
            await herder.check()
    except Exception as error:
        text = f"Worker was unable to handle this request and may be unable to handle other requests. {error}".strip()
        return Reply({"status": "unhealthy", "message": text}, 500)
    return Reply({"status": "healthy", "message": "Worker has completed startup and is ready to handle requests."})


# Connectors.


async def names(request: Request, herder: Herder) -> Reply:
    wanted = request.query_params.getlist("expand")
    names = await herder.connectors()
    if not wanted:
        return Reply(list(names))
    shown: dict[str, Any] = {}
    for name in names:
        parts: dict[str, Any] = {}
        try:
            if "info" in wanted:
                parts["info"] = shapes.connector(await herder.connector(name))
            if "status" in wanted:
                parts["status"] = shapes.connector_status(await herder.status(name))
        except NotFound:
            continue  # it was deleted meanwhile
        shown[name] = parts
    return Reply(shown)


_TRIMMED: Final = "".join(map(chr, range(33)))
"""What Java takes off a text's ends."""
_INITIAL: Final = {"RUNNING": TargetState.STARTED, "PAUSED": TargetState.PAUSED, "STOPPED": TargetState.STOPPED}


async def create(request: Request, herder: Herder) -> Reply:
    wanted = await bodies.read(request, texts=True)
    if not isinstance(wanted, dict) or not isinstance(wanted.get("config"), dict):
        raise BadRequest('a connector is created by {"name": "...", "config": {...}}: there is no "config" object')
    bodies.only(wanted, "name", "config", "initial_state")
    given = wanted.get("name")
    if not (given is None or isinstance(given, str)):
        raise BadRequest('"name" must be a string')
    name = (given or "").strip(_TRIMMED)
    config = _named(name, bodies.text_map(wanted["config"], "config"))
    initial = _initial(wanted.get("initial_state"))
    created = await herder.put_connector(name, config, initial=initial, replace=False)
    return _created(name, created)


def _initial(value: Any) -> TargetState | None:
    if value is None:
        return None
    state = _INITIAL.get(value.upper()) if isinstance(value, str) else None
    if state is None:
        raise BadRequest(f'"initial_state" must be one of {", ".join(_INITIAL)}, and is {value!r}')
    return state


def _named(name: str, config: Mapping[str, str | None]) -> dict[str, str]:
    """The configuration with the connector's name in it. Raises BadRequest where it has another one."""
    included = config.get("name")
    if included is not None and included != name:
        raise BadRequest(f"Connector name configuration ({included}) doesn't match connector name in the URL ({name})")
    return {**bodies.patch_of(config), "name": name}


def _created(name: str, created: Created) -> Reply:
    if not created.is_new:
        return Reply(shapes.connector(created.info))
    return Reply(shapes.connector(created.info), 201, {"location": f"/connectors/{quote(name, safe='')}"})


async def connector(request: Request, herder: Herder) -> Reply:
    return Reply(shapes.connector(await herder.connector(_name(request))))


async def config(request: Request, herder: Herder) -> Reply:
    return Reply(dict((await herder.connector(_name(request))).config))


async def put_config(request: Request, herder: Herder) -> Reply:
    name = _name(request)
    config = _named(name, bodies.text_map(await bodies.read(request, texts=True), "the configuration"))
    return _created(name, await herder.put_connector(name, config))


async def patch_config(request: Request, herder: Herder) -> Reply:
    name = _name(request)
    patch = bodies.text_map(await bodies.read(request, texts=True), "the patch")
    return _created(name, await herder.patch_connector(name, patch))


async def delete(request: Request, herder: Herder) -> Reply:
    await herder.delete_connector(_name(request))
    return Reply(status=204)


async def status(request: Request, herder: Herder) -> Reply:
    return Reply(shapes.connector_status(await herder.status(_name(request))))


async def restart(request: Request, herder: Herder) -> Reply:
    name = _name(request)
    include_tasks, only_failed = bodies.flag(request, "includeTasks"), bodies.flag(request, "onlyFailed")
    if not include_tasks and not only_failed:
        await herder.restart_connector(name)
        return Reply(status=204)
    status = await herder.restart(name, include_tasks=include_tasks, only_failed=only_failed)
    return Reply(shapes.connector_status(status), 202)


def to(target: TargetState, status: int) -> Answer:
    async def answer(request: Request, herder: Herder) -> Reply:
        await herder.set_target_state(_name(request), target)
        return Reply(status=status)

    return answer


# Tasks.


async def tasks(request: Request, herder: Herder) -> Reply:
    return Reply([shapes.task(task, config) for task, config in await herder.task_configs(_name(request))])


async def put_tasks(request: Request, herder: Herder) -> Reply:
    body = await bodies.read_text(request)
    await herder.put_task_configs(_name(request), body, request.headers, _task_configs)
    return Reply(status=204)


def _task_configs(body: bytes) -> list[dict[str, str]]:
    """The configurations of tasks in a request's body. Raises Refused (400) or BadRequest."""
    configs = bodies.parse(body, texts=True)
    if not isinstance(configs, list):
        raise BadRequest("the configurations of tasks must be a JSON array")
    return [bodies.patch_of(bodies.text_map(one, "a task's configuration")) for one in configs]


async def fence(request: Request, herder: Herder) -> Reply:
    await herder.fence(_name(request), await bodies.read_text(request), request.headers)
    return Reply(status=204)


async def task_status(request: Request, herder: Herder) -> Reply:
    task = _task(request)
    return Reply(shapes.task_state(task.task, await herder.task_status(task)))


async def restart_task(request: Request, herder: Herder) -> Reply:
    await herder.restart_task(_task(request))
    return Reply(status=204)


# Topics and offsets.


async def topics(request: Request, herder: Herder) -> Reply:
    name = _name(request)
    return Reply(shapes.topics(name, await herder.active_topics(name)))


async def reset_topics(request: Request, herder: Herder) -> Reply:
    await herder.reset_active_topics(_name(request))
    return Reply(status=202)


async def offsets(request: Request, herder: Herder) -> Reply:
    return Reply(shapes.offsets(await herder.offsets(_name(request))))


async def alter_offsets(request: Request, herder: Herder) -> Reply:
    offsets = bodies.read_offsets(await bodies.read(request))
    return Reply({"message": await herder.alter_offsets(_name(request), offsets)})


async def reset_offsets(request: Request, herder: Herder) -> Reply:
    return Reply({"message": await herder.reset_offsets(_name(request))})


# Plugins.


async def plugins(request: Request, herder: Herder) -> Reply:
    found = await herder.plugins(connectors_only=bodies.flag(request, "connectorsOnly", default=True))
    return Reply([shapes.plugin(one) for one in found])


async def plugin_config(request: Request, herder: Herder) -> Reply:
    return Reply(list(await herder.plugin_config(request.path_params["plugin"])))


async def validate(request: Request, herder: Herder) -> Reply:
    plugin = request.path_params["plugin"]
    config = bodies.text_map(await bodies.read(request, texts=True), "the configuration")
    named = config.get("connector.class")
    if named is not None and _simple(named) != _simple(plugin):
        raise BadRequest(f"Included connector type {named} does not match request type {plugin}")
    return Reply(dict(await herder.validate(plugin, config)))


def _simple(plugin: str) -> str:
    """A connector's class without what may be left out when it is named."""
    return plugin.rpartition(".")[2].removesuffix("Connector")


# Loggers.


async def loggers(_: Request, herder: Herder) -> Reply:
    levels = await herder.loggers()
    return Reply({name: shapes.logger(levels[name]) for name in sorted(levels)})


async def logger(request: Request, herder: Herder) -> Reply:
    name = request.path_params["logger"]
    level = (await herder.loggers()).get(name)
    if level is None:
        raise NotFound(f"Logger {name} not found.")
    return Reply(shapes.logger(level))


async def set_logger(request: Request, herder: Herder) -> Reply:
    name = request.path_params["logger"]
    wanted = bodies.text_map(await bodies.read(request, texts=True), "the request").get("level")
    if wanted is None:
        raise BadRequest("Desired 'level' parameter was not specified in request.")
    if request.query_params.get("scope", "worker").lower() == "cluster":
        await herder.set_cluster_logger(name, wanted)
        return Reply(status=204)
    return Reply(list(await herder.set_logger(name, wanted)))


def _name(request: Request) -> str:
    return str(request.path_params["connector"])


def _task(request: Request) -> TaskId:
    number = request.path_params["task"]
    digits = number.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise NotFound("HTTP 404 Not Found")
    return TaskId(_name(request), int(number))
