"""The REST API: paths, parameters, bodies and errors of Confluent's registry.

Rules:

1. Every response is JSON; an error is ``{"error_code": 40401, "message": "..."}``. An unexpected exception gets 50001,
and its traceback is logged.
2. Paths are split before their parts are decoded: a subject may contain a slash, as ``%2F``.
3. Schemas are parsed and compared in threads, because this may take long. Compatibility checks have a few separate
threads, so that registrations need not wait for them. Checks beyond ``_COMPARISONS_WAITING_MAX`` get status 503.
4. A read that finds nothing is repeated once after the topic was read to its end, so it finds everything that another
   instance has confirmed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from parley.pipeline.registry import decisions
from parley.pipeline.registry.compatibility import Level
from parley.pipeline.registry.decisions import Change
from parley.pipeline.registry.errors import (
    RegistryError,
    invalid_schema,
    invalid_version,
    no_schema,
    no_subject,
    no_version,
)
from parley.pipeline.registry.state import INT32_MAX, State, Version
from parley.pipeline.registry.store import Store
from parley.pipeline.schemas import protobuf
from parley.pipeline.schemas.model import BadSchema, Schema, SchemaType
from parley.pipeline.service.requests import BodyRequest, error, message_of
from parley.version import VERSION

_COMPARISONS_MAX: Final = 2
"""The number of compatibility checks that run at the same time."""
_COMPARISONS_WAITING_MAX: Final = 32
"""The maximum number of compatibility checks that run or wait: each holds the body of its request in memory."""
_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_DEFAULT_CONTEXT: Final = ":.:"
_LATEST: Final = ("latest", "-1")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """A request: the named parts of its path, its parameters, and its parsed body."""

    parts: Mapping[str, str]
    query: Mapping[str, str]
    body: Any = None

    def flag(self, name: str) -> bool:
        """Return True if the parameter is ``true``."""
        return self.query.get(name, "").lower() == "true"

    @property
    def subject(self) -> str:
        """The subject in the path, without the prefix of the default context. Raises RegistryError (42208) if it is not
        valid.
        """
        return _subject(self.parts.get("subject", ""))

    def version(self) -> int | None:
        """Return the version in the path; None means the latest. Raises RegistryError (42202) for anything else."""
        text = self.parts["version"]
        if text in _LATEST:
            return None
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:11]) <= INT32_MAX:
            raise invalid_version(text)
        return int(text)

    @property
    def id(self) -> int:
        """The schema id in the path. Raises RegistryError (404) if it is not a number."""
        text = self.parts["id"]
        if not text.isascii() or not text.isdigit() or int(text[:11]) > INT32_MAX:
            raise RegistryError(404, "HTTP 404 Not Found")
        return int(text)

    def object(self) -> Mapping[str, Any]:
        """Return the body. Raises RegistryError (422) if it is not a JSON object."""
        if not isinstance(self.body, dict):
            raise RegistryError(422, "The body of the request must be a JSON object")
        return self.body

    def schema(self) -> Schema:
        """Return the schema in the body. Raises RegistryError: 422 or 42201 if it is malformed, 42201 or 42210 if it
        has a data contract.
        """
        given = self.object()
        for name, code in (("metadata", 42201), ("ruleSet", 42210)):
            if given.get(name):
                raise RegistryError(code, f"This registry has no data contracts: remove '{name}'")
        try:
            return Schema.of_json({**given, "references": [_in_default(one) for one in given.get("references") or []]})
        except (BadSchema, TypeError) as error:
            raise invalid_schema(error) from None

    def number(self, name: str) -> int | None:
        """Return a number in the body; None if it is missing or -1. Raises RegistryError (42201) if it is not between 0
        and 2**31 - 1.
        """
        given = self.object().get(name)
        if given in (None, -1):
            return None
        if type(given) is not int or not 0 <= given <= INT32_MAX:
            raise invalid_schema(f"'{name}' must be a number up to {INT32_MAX}")
        return given


def _subject(text: str) -> str:
    name = text.removeprefix(_DEFAULT_CONTEXT)
    if name.startswith(":."):
        raise RegistryError(42208, f"The subject {text} names a context; this registry has only the default context")
    if not name or any(ord(char) < 32 for char in name):
        raise RegistryError(42208, "The specified subject is not a valid name")
    return name


def _in_default(reference: Any) -> Any:
    if isinstance(reference, dict) and isinstance(reference.get("subject"), str):
        return {**reference, "subject": reference["subject"].removeprefix(_DEFAULT_CONTEXT)}
    return reference


class _Request(BodyRequest):
    bytes_max = 4 << 20
    """The maximum size of a body: enough for a schema of the maximum size in which every character is escaped."""


Read = Callable[["RegistryApi", State, Call], Any]
Write = Callable[["RegistryApi", Call], Awaitable[Any]]


class RegistryApi:
    """The registry's REST API as an ASGI application."""

    def __init__(self, store: Store, default_level: Level) -> None:
        self._store = store
        self.default_level = default_level
        self._comparing = ThreadPoolExecutor(_COMPARISONS_MAX, thread_name_prefix="comparing")
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = _Request(scope, receive)
        try:
            response = _response(await self._respond(request))
        except RegistryError as failure:
            response = error(failure.status, str(failure), code=failure.code)
        except HTTPException as failure:
            response = error(failure.status_code, message_of(failure))
        except Exception as failure:
            _log.exception("%s %s failed", request.method, request.url.path)
            response = error(500, f"Internal error: {type(failure).__name__}", code=50001)
        response.headers["content-type"] = _TYPE
        await response(scope, receive, send)

    async def _respond(self, request: BodyRequest) -> Any:
        raw = request.scope.get("raw_path") or request.scope["path"].encode()
        parts = [unquote(one) for one in raw.partition(b"?")[0].decode("latin-1").strip("/").split("/")]
        method = "GET" if request.method == "HEAD" else request.method
        found = _route(parts)
        if found is None:
            raise RegistryError(404, "HTTP 404 Not Found")
        methods, named = found
        if method not in methods:
            raise RegistryError(405, "HTTP 405 Method Not Allowed")
        body = await request.json() if method in ("POST", "PUT") else None
        call = Call(named, request.query_params, body)
        handler, writes = methods[method]
        if writes:
            return await handler(self, call)
        try:
            return _page(await self._read(handler, call), call)
        except RegistryError as error:
            if not error.is_absence:
                raise
        await self._store.refresh()
        return _page(await self._read(handler, call), call)

    async def _read(self, handler: Read, call: Call) -> Any:
        if call.body is None and "format" not in call.query:
            return handler(self, self._store.state, call)
        if handler is not RegistryApi.compatibility:
            return await asyncio.to_thread(handler, self, self._store.state, call)
        if self._waiting == _COMPARISONS_WAITING_MAX:
            raise RegistryError(503, "The registry is busy comparing schemas: try again later")
        self._waiting += 1
        comparison = asyncio.get_running_loop().run_in_executor(self._comparing, handler, self, self._store.state, call)
        comparison.add_done_callback(self._compared)
        return await comparison

    def _compared(self, _: object) -> None:
        self._waiting -= 1

    # Changes.

    async def register(self, call: Call) -> Any:
        given, subject, number, version = call.schema(), call.subject, call.number("id"), call.number("version")

        def decide(state: State) -> Change:
            schema = decisions.canonical(decisions.resolved(state, given), state.load)
            return decisions.register(state, subject, schema, self.default_level, number=number, version=version)

        return await self._store.change(lambda state: asyncio.to_thread(decide, state))

    async def delete_version(self, call: Call) -> Any:
        subject, version, permanent = call.subject, call.version(), call.flag("permanent")
        return await self._change(lambda state: decisions.delete_version(state, subject, version, permanent=permanent))

    async def delete_subject(self, call: Call) -> Any:
        subject, permanent = call.subject, call.flag("permanent")
        return await self._change(lambda state: decisions.delete_subject(state, subject, permanent=permanent))

    async def set_config(self, call: Call) -> Any:
        subject, given = _optional(call), call.object()
        return await self._change(lambda _: decisions.set_config(subject, given))

    async def clear_config(self, call: Call) -> Any:
        subject = _optional(call)
        return await self._change(lambda state: decisions.clear_config(state, subject, self.default_level))

    async def set_mode(self, call: Call) -> Any:
        subject, given, force = _optional(call), call.object(), call.flag("force")
        return await self._change(lambda state: decisions.set_mode(state, subject, given, force=force))

    async def clear_mode(self, call: Call) -> Any:
        subject = _optional(call)
        return await self._change(lambda state: decisions.clear_mode(state, subject))

    async def _change(self, decide: Callable[[State], Change]) -> Any:
        async def decided(state: State) -> Change:
            return decide(state)

        return await self._store.change(decided)

    # Reads.

    def look_up(self, state: State, call: Call) -> Any:
        if not state.versions(call.subject, deleted=call.flag("deleted")):
            raise no_subject(call.subject)
        try:
            schema = decisions.canonical(decisions.resolved(state, call.schema()), state.load)
        except RegistryError as error:
            raise error if error.code != 42201 or not call.schema().references else no_schema() from None
        found = decisions.find(state, call.subject, schema, deleted=call.flag("deleted"))
        if found is None:
            raise no_schema()
        return _shown(state, call, found)

    def compatibility(self, state: State, call: Call) -> Any:
        schema = decisions.canonical(decisions.resolved(state, call.schema()), state.load)
        level = decisions.level_of(state, call.subject, self.default_level)
        earlier = state.versions(call.subject)
        if "version" in call.parts:
            wanted = call.version()
            earlier = earlier[-1:] if wanted is None else [one for one in earlier if one.version == wanted]
            if not earlier and wanted is not None:
                raise no_version(wanted) if state.versions(call.subject) else no_subject(call.subject)
        found = decisions.check(state, schema, earlier, level)
        return {"is_compatible": not found, **({"messages": found} if call.flag("verbose") else {})}

    def subjects(self, state: State, call: Call) -> list[str]:
        prefix, deleted, only = call.query.get("subjectPrefix", ""), call.flag("deleted"), call.flag("deletedOnly")
        prefix = prefix.removeprefix(_DEFAULT_CONTEXT)
        names = [one for one in state.subjects() if one.startswith(prefix)]
        if only:
            return [one for one in names if not state.versions(one)]
        return [one for one in names if deleted or state.versions(one)]

    def versions(self, state: State, call: Call) -> list[int]:
        deleted, only = call.flag("deleted"), call.flag("deletedOnly")
        found = [one for one in state.versions(call.subject, deleted=deleted or only) if one.is_deleted or not only]
        if not found:
            raise no_subject(call.subject)
        return [one.version for one in found]

    def version(self, state: State, call: Call) -> Any:
        return _shown(state, call, _version(state, call))

    def version_text(self, state: State, call: Call) -> Any:
        return _text(_shown(state, call, _version(state, call))["schema"])

    def referenced_by(self, state: State, call: Call) -> list[int]:
        one = _version(state, call)
        users = state.referring(one.subject, one.version)
        return sorted({user.id for user in users if call.flag("deleted") or not user.is_deleted})

    def schemas(self, state: State, call: Call) -> list[Any]:
        made: list[Any] = []
        for subject in self.subjects(state, call):
            found = state.versions(subject, deleted=call.flag("deleted"))
            made += [one.as_json() for one in (found[-1:] if call.flag("latestOnly") else found)]
        return made

    def schema(self, state: State, call: Call) -> Any:
        shown = _shown(state, call, decisions.schema_with(state, call.id))
        most = {"maxId": state.id_max} if call.flag("fetchMaxId") else {}
        return {**{key: value for key, value in shown.items() if key not in ("subject", "version", "id")}, **most}

    def schema_text(self, state: State, call: Call) -> Any:
        return _text(_shown(state, call, decisions.schema_with(state, call.id))["schema"])

    def schema_subjects(self, state: State, call: Call) -> list[str]:
        return list(dict.fromkeys(one.subject for one in _with_id(state, call)))

    def schema_versions(self, state: State, call: Call) -> list[Any]:
        return [{"subject": one.subject, "version": one.version} for one in _with_id(state, call)]

    def types(self, _: State, __: Call) -> list[str]:
        return ["JSON", "PROTOBUF", "AVRO"]

    def config(self, state: State, call: Call) -> Any:
        subject = _optional(call)
        if subject is not None and subject not in state.configs and not call.flag("defaultToGlobal"):
            raise RegistryError(40408, f"Subject '{subject}' does not have subject-level compatibility configured")
        return {"compatibilityLevel": decisions.level_of(state, subject, self.default_level)}

    def mode(self, state: State, call: Call) -> Any:
        subject = _optional(call)
        if subject is not None and subject not in state.modes and not call.flag("defaultToGlobal"):
            raise RegistryError(40409, f"Subject '{subject}' does not have subject-level mode configured")
        return {"mode": decisions.mode_of(state, subject)}

    def contexts(self, _: State, __: Call) -> list[str]:
        return ["."]

    def root(self, _: State, __: Call) -> Any:
        return {}

    def about(self, _: State, __: Call) -> Any:
        return {"version": VERSION, "commitId": ""}


def _version(state: State, call: Call) -> Version:
    wanted, subject = call.version(), call.subject
    found = state.versions(subject, deleted=call.flag("deleted"))
    if not found:
        raise no_subject(subject)
    if wanted is None:
        return found[-1]
    for one in found:
        if one.version == wanted:
            return one
    raise no_version(wanted)


def _with_id(state: State, call: Call) -> list[Version]:
    decisions.schema_with(state, call.id)
    return [one for one in state.with_id(call.id) if call.flag("deleted") or not one.is_deleted]


def _shown(state: State, call: Call, version: Version) -> dict[str, Any]:
    """Return the version as JSON, with its schema in the form that ``format`` requests. Raises
    RegistryError (42201).
    """
    made = version.as_json()
    if call.query.get("format") == "serialized" and version.schema.type is SchemaType.PROTOBUF:
        try:
            made["schema"] = protobuf.serialized(version.schema, state.load)
        except BadSchema as error:
            raise invalid_schema(error) from None
    return made


def _text(schema: str) -> Any:
    """Return a response whose body is the schema's text."""
    return Response(schema)


def _optional(call: Call) -> str | None:
    return call.subject if "subject" in call.parts else None


def _page(found: Any, call: Call) -> Any:
    """Return the part of a list that ``offset`` and ``limit`` select. Anything else is returned unchanged. Raises
    RegistryError (404) if one of the two is not a number.
    """
    if not isinstance(found, list):
        return found
    try:
        first, most = int(call.query.get("offset", 0)), int(call.query.get("limit", -1))
    except ValueError:
        raise RegistryError(404, "HTTP 404 Not Found") from None
    return found[max(first, 0) :][: most if most >= 0 else None]


def _response(body: Any) -> Response:
    return body if isinstance(body, Response) else JSONResponse(body)


_Handler = tuple[Any, bool]
_A: Final = RegistryApi
_CONFIG: Final[Mapping[str, _Handler]] = {
    "GET": (_A.config, False), "PUT": (_A.set_config, True), "DELETE": (_A.clear_config, True)
}  # fmt: skip
_MODE: Final[Mapping[str, _Handler]] = {
    "GET": (_A.mode, False), "PUT": (_A.set_mode, True), "DELETE": (_A.clear_mode, True)
}  # fmt: skip
_PATHS: Final[Mapping[str, Mapping[str, _Handler]]] = {
    "": {"GET": (_A.root, False)},
    "subjects": {"GET": (_A.subjects, False)},
    "subjects/{subject}": {"POST": (_A.look_up, False), "DELETE": (_A.delete_subject, True)},
    "subjects/{subject}/versions": {"GET": (_A.versions, False), "POST": (_A.register, True)},
    "subjects/{subject}/versions/{version}": {"GET": (_A.version, False), "DELETE": (_A.delete_version, True)},
    "subjects/{subject}/versions/{version}/schema": {"GET": (_A.version_text, False)},
    "subjects/{subject}/versions/{version}/referencedby": {"GET": (_A.referenced_by, False)},
    "schemas": {"GET": (_A.schemas, False)},
    "schemas/types": {"GET": (_A.types, False)},
    "schemas/ids/{id}": {"GET": (_A.schema, False)},
    "schemas/ids/{id}/schema": {"GET": (_A.schema_text, False)},
    "schemas/ids/{id}/subjects": {"GET": (_A.schema_subjects, False)},
    "schemas/ids/{id}/versions": {"GET": (_A.schema_versions, False)},
    "compatibility/subjects/{subject}/versions": {"POST": (_A.compatibility, False)},
    "compatibility/subjects/{subject}/versions/{version}": {"POST": (_A.compatibility, False)},
    "config": _CONFIG,
    "config/{subject}": _CONFIG,
    "mode": _MODE,
    "mode/{subject}": _MODE,
    "contexts": {"GET": (_A.contexts, False)},
    "v1/metadata/version": {"GET": (_A.about, False)},
}
_ROUTES: Final = [(tuple(path.split("/")), methods) for path, methods in _PATHS.items()]


def _route(parts: Sequence[str]) -> tuple[Mapping[str, _Handler], dict[str, str]] | None:
    for path, methods in _ROUTES:
        pairs = list(zip(path, parts, strict=False))
        if len(path) == len(parts) and all(_is_named(one) or one == part for one, part in pairs):
            return methods, {one[1:-1]: part for one, part in pairs if _is_named(one)}
    return None


def _is_named(part: str) -> bool:
    return part.startswith("{")
