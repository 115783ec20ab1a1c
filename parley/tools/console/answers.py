"""Requests and responses of the console's API: parameters, pages, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from parley.consensus.errors import CoordinationError
from parley.pipeline.service.requests import BodyRequest
from parley.protocol.client import Client, NotAuthenticated
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.metadata import MetadataResponse
from parley.tools.cli.cluster_client import described
from parley.tools.cli.invocation import CommandError

T = TypeVar("T")
PAGE_MAX: Final = 200
_PAGE: Final = 50


class ApiRequest(BodyRequest):
    """A request whose body is JSON of at most one mebibyte."""

    bytes_max = 1024 * 1024

    async def object(self) -> dict[str, Any]:
        """Return the body, which must be a JSON object. Raises HTTPException: 400 if it is not, 413 if it is too
        large."""
        found = await self.json()
        if not isinstance(found, dict):
            raise HTTPException(400, "The body of the request must be a JSON object")
        return found


def number(request: Request, name: str, default: int, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return an integer from the query, or ``default`` if it is missing. A number outside the range becomes the nearest
    limit. Raises HTTPException (400) if it is not an integer."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    try:
        return min(max(int(text), least), most)
    except ValueError:
        raise HTTPException(400, f"{name} must be a number, not {text!r}") from None


def text_of(body: dict[str, Any], name: str, default: str | None = None) -> str:
    """Return a string from a body. Raises HTTPException (400) if the value is not a string, or is missing and has no
    default."""
    found = body.get(name, default)
    if not isinstance(found, str):
        raise HTTPException(400, f"{name} must be a string")
    return found


def integer_of(body: dict[str, Any], name: str, default: int | None = None) -> int:
    """Return an integer from a body. Raises HTTPException (400) if the value is not an integer, or is missing and has
    no default."""
    found = body.get(name, default)
    if not isinstance(found, int) or isinstance(found, bool):
        raise HTTPException(400, f"{name} must be an integer")
    return found


def page(request: Request, items: Sequence[T], render: Callable[[T], Any]) -> dict[str, Any]:
    """Return one page of a list, with the total number of items and of pages. Query: page (from 0), size. A page after
    the last one becomes the last."""
    size = number(request, "size", _PAGE, 1, PAGE_MAX)
    last = max((len(items) - 1) // size, 0)
    at = number(request, "page", 0, 0, last)
    return {
        "total": len(items),
        "page": at,
        "pages": last + 1,
        "items": [render(one) for one in items[at * size : (at + 1) * size]],
    }


def matching(request: Request, items: Iterable[T], name: Callable[[T], str]) -> list[T]:
    """Return the items whose name contains the query's ``search``, ignoring case."""
    wanted = request.query_params.get("search", "").lower()
    return [one for one in items if wanted in name(one).lower()] if wanted else list(items)


def refuse(code: int, message: str | None = None) -> None:
    """Raise KafkaError if the error code of a response is not NONE. ``message`` replaces the standard message of the
    code."""
    if code:
        raise KafkaError(ErrorCode(code), message or described(code))


async def described_topic(client: Client, name: str) -> MetadataResponse:
    """Return the Metadata response for a topic. Raises KafkaError if the topic cannot be described."""
    answer = await client.metadata([name])
    refuse(answer.topics[0].error_code)
    return answer


def error_of(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the JSON body of the response to a request that failed with ``error``. Raises
    ``error`` again if it is unexpected."""
    match error:
        case HTTPException():
            return error.status_code, {"error": error.detail}
        case NotAuthenticated():
            return 401, {"error": "The cluster rejected the login.", "code": error.code.name}
        case KafkaError():
            return _status_of(error.code.name, error.code), {"error": error.message, "code": error.code.name}
        case CommandError():
            text = str(error)
            code = text.rpartition("(")[2].removesuffix(")").removesuffix(").")
            return (403 if "AUTHORIZATION_FAILED" in text else 400), {"error": text, "code": code}
        case CoordinationError() | TimeoutError():
            return 503, {"error": f"The coordination store does not respond: {error or type(error).__name__}"}
        case ValueError():
            return 400, {"error": str(error)}
        case _:
            raise error


def _status_of(name: str, code: ErrorCode) -> int:
    if "AUTHORIZATION_FAILED" in name:
        return 403
    if code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT):
        return 503
    return 404 if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else 409
