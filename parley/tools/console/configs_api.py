"""Settings of topics, brokers and groups, with their defaults and documentation."""

from __future__ import annotations

from typing import Any, Final

from starlette.exceptions import HTTPException

from parley.tools.cli import configs
from parley.tools.console.answers import ApiRequest
from parley.tools.console.cluster_view import ClusterView

KINDS: Final = ("topic", "broker", "group")
_DEFAULT: Final = 5


async def describe(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Return all settings of a topic, a broker or a group. Sensitive values are left out. Raises HTTPException (404)
    for another type of entity, and CommandError if the entity does not exist."""
    found = await configs.describe(view.client, _entity(request), all_settings=True, with_documentation=True)
    return {
        "settings": [
            {
                "name": one.name,
                "value": None if one.is_sensitive else one.value,
                "sensitive": one.is_sensitive,
                "readOnly": one.read_only,
                "own": one.config_source in (1, 2),
                "default": next((each.value for each in one.synonyms if each.source == _DEFAULT), None),
                "source": configs.source_name(one.config_source),
                "documentation": one.documentation or "",
            }
            for one in found
        ]
    }


async def change(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Set and remove settings. Body: ``set`` is an object with string values, ``remove`` is a list of names. Returns
    the cluster's warnings. Raises HTTPException: 400 for a wrong body, 404 for an unknown type of entity; and
    CommandError if the cluster rejects the change."""
    body = await request.object()
    wanted, removed = body.get("set", {}), body.get("remove", [])
    are_containers = isinstance(wanted, dict) and isinstance(removed, list)
    if not are_containers or not all(isinstance(each, str) for each in [*wanted.values(), *removed]):
        raise HTTPException(400, "set must be an object with string values, and remove a list of names")
    entity = _entity(request)
    await configs.apply(view.client, entity, wanted, removed)
    view.forget()
    return {"warnings": await configs.warnings_about(view.client, entity, list(wanted))}


def _entity(request: ApiRequest) -> configs.Entity:
    kind = request.path_params["kind"]
    if kind not in KINDS:
        raise HTTPException(404, f"the type must be one of {', '.join(KINDS)}")
    return configs.Entity(kind, request.path_params["name"])
