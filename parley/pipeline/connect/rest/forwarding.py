"""Forwards a request to the worker that leads the group.

A request is forwarded at most twice (as in Kafka Connect): the worker that forwards it sets ``forward`` if the next
worker may forward it again, because the leader may have changed.
"""

from __future__ import annotations

import json
import ssl
from typing import Final
from urllib.parse import urlsplit

import httpx
from starlette.responses import JSONResponse, Response

from parley.pipeline.connect.herder_results import NO_LEADER, HerderError, NotLeader, Rebalancing
from parley.pipeline.service.requests import BodyRequest

_FORWARDED_HEADERS: Final = (
    "content-type",
    "authorization",
    "x-connect-authorization",
    "x-connect-request-signature-algorithm",
)
_NEXT: Final = {"": "true", "true": "false"}


class Forwarder:
    """Forwards requests to the leader. Call ``close`` at the end."""

    def __init__(self, timeout_seconds: float = 90.0, *, tls: ssl.SSLContext | None = None) -> None:
        """``tls`` verifies workers whose REST API uses HTTPS; None means the system's certificate authorities."""
        self._client = httpx.AsyncClient(timeout=timeout_seconds, verify=True if tls is None else tls)

    async def send(self, request: BodyRequest, elsewhere: NotLeader) -> Response:
        """Return the leader's response. Raises Rebalancing if the leader is unknown or the request must not be
        forwarded again, and HerderError if the leader returns an error or cannot be reached.
        """
        forward = _NEXT.get(request.query_params.get("forward", "").lower())
        if forward is None:
            raise Rebalancing("Cannot complete request because of a conflicting operation (e.g. worker rebalance)")
        if not elsewhere.leader_url:
            raise Rebalancing(NO_LEADER)
        url = httpx.URL(elsewhere.leader_url).join(request.scope["raw_path"].decode("ascii").partition("?")[0])
        parameters = [(key, value) for key, value in request.query_params.multi_items() if key != "forward"]
        headers = {name: request.headers[name] for name in _FORWARDED_HEADERS if name in request.headers}
        try:
            answer = await self._client.request(
                request.method,
                url,
                params=[*parameters, ("forward", forward)],
                headers=headers,
                content=await request.body(),
            )
        except httpx.HTTPError as error:
            raise HerderError(f"IO Error trying to forward REST request: {error}") from error
        return _reply(answer)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


class _Elsewhere(HerderError):
    """Raised if the leader responds to a forwarded request with an error. The client gets its status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _reply(answer: httpx.Response) -> Response:
    try:
        body = json.loads(answer.content) if answer.content else None
    except ValueError:
        body = None
    if answer.status_code >= 400:
        message = body.get("message") if isinstance(body, dict) else None
        raise _Elsewhere(answer.status_code, message or f"the leader responded with HTTP status {answer.status_code}")
    location = answer.headers.get("location")
    headers = {} if location is None else {"location": urlsplit(location).path}
    return Response(None, answer.status_code) if body is None else JSONResponse(body, answer.status_code, headers)
