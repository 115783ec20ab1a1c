"""Passes a request to its endpoint, and turns errors into responses.

Rules:

1. A body that is not JSON gets 415, and a client that does not accept JSON gets 406. An unexpected exception gets 500
with its text, and its traceback is logged.
2. The worker forwards requests that only the leader of the group can serve
   (``parley.pipeline.connect.rest.forwarding``).
3. A request that takes longer than the application's ``request_seconds`` is abandoned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from parley.pipeline.connect.herder_results import HerderError, NotLeader, TimedOut
from parley.pipeline.connect.rest.forwarding import Forwarder
from parley.pipeline.service.requests import BodyRequest, error

_READY_WITHOUT: Final = "/health"
_JSON: Final = "application/json"
_Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]
_log = logging.getLogger(__name__)


class HerderRoute(APIRoute):
    """An endpoint of a herder, by the rules of this module."""

    def get_route_handler(self) -> _Endpoint:
        """Return the endpoint, as FastAPI calls it."""
        endpoint, takes_body = super().get_route_handler(), self.body_field is not None

        async def respond(given: Request) -> Response:
            request, state = BodyRequest(given.scope, given.receive), given.app.state
            if not _takes_json(request.headers.get("accept", "")):
                raise HTTPException(406)
            if not state.herder.is_ready and self.path != _READY_WITHOUT:
                raise HTTPException(503, "Worker is still starting up.")
            await _check_body(request, takes_body)
            try:
                async with asyncio.timeout(state.request_seconds):
                    return _located(await _reply(endpoint, request), request)
            except TimeoutError:
                raise TimedOut("Request timed out") from None
            except (HerderError, HTTPException, RequestValidationError):
                raise
            except Exception as failure:
                _log.exception("%s %s failed", request.method, request.url.path)
                return error(500, str(failure) or type(failure).__name__)

        return respond


async def _reply(endpoint: _Endpoint, request: BodyRequest) -> Response:
    try:
        return await endpoint(request)
    except NotLeader as elsewhere:
        forwarder: Forwarder | None = request.app.state.forwarder
        if forwarder is None:
            raise
        return await forwarder.send(request, elsewhere)


def _located(response: Response, request: Request) -> Response:
    """Return the response. If it has a ``location``, that becomes a full URL."""
    if "location" in response.headers:
        response.headers["location"] = str(request.base_url).rstrip("/") + response.headers["location"]
    return response


async def _check_body(request: BodyRequest, is_wanted: bool) -> None:
    """Raise HTTPException if the body is not acceptable: 415 if it is not JSON, otherwise 400 or 413 as ``BodyRequest``
    does.

    ``is_wanted``: the endpoint needs a body.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    if kind != _JSON and (is_wanted or (has_body and kind)):
        raise HTTPException(415)
    if is_wanted:
        await request.json()


def _takes_json(accept: str) -> bool:
    kinds = {one.partition(";")[0].strip().lower() for one in accept.split(",")}
    return bool(kinds & {"", "*/*", "application/*", _JSON})


def problem_of(errors: Sequence[Any]) -> str:
    """Return the first of pydantic's errors as text, without the value, which may be a password."""
    first = errors[0]
    if first["type"] == "extra_forbidden":
        return f'Unrecognized field "{first["loc"][-1]}"'
    place = ".".join(map(str, first["loc"][1 if first["loc"][:1] == ("body",) else 0 :]))
    return f"{place}: {first['msg']}" if place else str(first["msg"])
