"""The OpenAPI document of the API, made from the table of endpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from parley.pipeline.connect.rest.endpoints import ENDPOINTS, Endpoint

__all__ = ["document"]

Json = dict[str, Any]

_TEXT: Final[Json] = {"type": "string"}
_NUMBER: Final[Json] = {"type": "integer"}


def _object(required: Mapping[str, Json], **optional: Json) -> Json:
    made: Json = {"type": "object", "properties": {**required, **optional}}
    if required:
        made["required"] = list(required)
    return made


def _array(items: Json) -> Json:
    return {"type": "array", "items": items}


def _map(values: Json) -> Json:
    return {"type": "object", "additionalProperties": values}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


_STATES: Final[Json] = {
    "type": "string",
    "enum": ["UNASSIGNED", "RUNNING", "PAUSED", "STOPPED", "FAILED", "RESTARTING", "DESTROYED"],
}
_STATE: Final[dict[str, Json]] = {"state": _STATES, "worker_id": _TEXT}
_NULLABLE: Final[Json] = {"type": ["string", "null"]}
_KIND: Final[Json] = {"type": "string", "enum": ["source", "sink", "unknown"]}

SCHEMAS: Final[dict[str, Json]] = {
    "Error": _object({"error_code": _NUMBER, "message": _TEXT}),
    "Message": _object({"message": _TEXT}),
    "ServerInfo": _object({"version": _TEXT, "commit": _TEXT, "kafka_cluster_id": _TEXT}),
    "Health": _object({"status": {"type": "string", "enum": ["starting", "healthy", "unhealthy"]}, "message": _TEXT}),
    "Config": _map(_TEXT),
    "ConfigPatch": _map(_NULLABLE),
    "TaskId": _object({"connector": _TEXT, "task": _NUMBER}),
    "ConnectorInfo": _object({"name": _TEXT, "config": _ref("Config"), "tasks": _array(_ref("TaskId")), "type": _KIND}),
    "CreateConnectorRequest": _object(
        {"name": _TEXT, "config": _ref("Config")},
        initial_state={"type": "string", "enum": ["RUNNING", "PAUSED", "STOPPED"]},
    ),
    "ConnectorState": _object(_STATE, trace=_TEXT, version=_TEXT),
    "TaskStatus": _object({"id": _NUMBER, **_STATE}, trace=_TEXT, version=_TEXT),
    "ConnectorStatus": _object(
        {"name": _TEXT, "connector": _ref("ConnectorState"), "tasks": _array(_ref("TaskStatus")), "type": _KIND}
    ),
    "Connectors": {
        "oneOf": [
            _array(_TEXT),
            _map(_object({}, info=_ref("ConnectorInfo"), status=_ref("ConnectorStatus"))),
        ]
    },
    "Task": _object({"id": _ref("TaskId"), "config": _ref("Config")}),
    "Tasks": _array(_ref("Task")),
    "TaskConfigs": _array(_ref("Config")),
    "Topics": _map(_object({"topics": _array(_TEXT)})),
    "Offset": _object({"partition": {"type": "object"}, "offset": {"type": ["object", "null"]}}),
    "Offsets": _object({"offsets": _array(_ref("Offset"))}),
    "Plugin": _object({"class": _TEXT, "type": _TEXT, "version": _TEXT}),
    "Plugins": _array(_ref("Plugin")),
    "ConfigKey": _object(
        {
            "name": _TEXT,
            "type": _TEXT,
            "required": {"type": "boolean"},
            "default_value": _NULLABLE,
            "importance": _TEXT,
            "documentation": _TEXT,
            "group": _NULLABLE,
            "width": _TEXT,
            "display_name": _TEXT,
            "dependents": _array(_TEXT),
            "order_in_group": _NUMBER,
        }
    ),
    "ConfigKeys": _array(_ref("ConfigKey")),
    "ConfigValue": _object(
        {
            "name": _TEXT,
            "value": _NULLABLE,
            "recommended_values": _array(_TEXT),
            "errors": _array(_TEXT),
            "visible": {"type": "boolean"},
        }
    ),
    "ConfigInfos": _object(
        {
            "name": _TEXT,
            "error_count": _NUMBER,
            "groups": _array(_TEXT),
            "configs": _array(_object({"definition": _ref("ConfigKey"), "value": _ref("ConfigValue")})),
        }
    ),
    "LoggerLevel": _object({"level": _TEXT, "last_modified": {"type": ["integer", "null"], "format": "int64"}}),
    "Loggers": _map(_ref("LoggerLevel")),
    "LoggerNames": _array(_TEXT),
    "SetLogger": _object({"level": _TEXT}),
}


def document(version: str) -> Json:
    """The whole document, as JSON."""
    paths: dict[str, Json] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Parley Connect",
            "version": version,
            "description": "The REST API of Kafka Connect, served by Parley's workers.",
            "license": {"name": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": SCHEMAS},
    }


def _operation(endpoint: Endpoint) -> Json:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]
    parameters += [
        {"name": name, "in": "query", "required": False, "description": what, "schema": _query_schema(name)}
        for name, what in endpoint.query.items()
    ]
    operation: Json = {"summary": endpoint.summary, "operationId": _operation_id(endpoint)}
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": _json(endpoint.body)}
    operation["responses"] = {str(status): _response(status, schema) for status, schema in endpoint.answers.items()}
    return operation


def _operation_id(endpoint: Endpoint) -> str:
    return "_".join([endpoint.method.lower(), *re.findall(r"\w+", endpoint.path)])


def _query_schema(name: str) -> Json:
    return _array(_TEXT) if name == "expand" else _TEXT


_MEANINGS: Final = {
    200: "done",
    201: "created",
    202: "asked for; done a little later",
    204: "done, nothing to say",
    400: "the request is wrong",
    403: "the signature is wrong",
    404: "there is none",
    409: "it is there already, or workers share out their work just now: try again",
    500: "it went wrong",
    503: "not yet",
}


def _response(status: int, schema: str | None) -> Json:
    made: Json = {"description": _MEANINGS[status]}
    if schema is not None:
        made["content"] = _json(schema)
    return made


def _json(schema: str) -> Json:
    return {"application/json": {"schema": _ref(schema)}}
