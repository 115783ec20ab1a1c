"""Parses request bodies, and turns errors into responses.

Rules:

1. No body is read beyond the limit. JSON is strict: no NaN, no lone surrogates.
2. A number with a fraction or an exponent keeps its text (``Number``), for settings that are written as numbers.
3. Every error is ``{"error_code": 404, "message": "..."}``, as in Kafka Connect and Confluent's registry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar, Self

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse


class Number(float):
    """A JSON number that is not an integer, with its text."""

    text: str

    def __new__(cls, text: str) -> Self:
        made = super().__new__(cls, text)
        made.text = text
        return made


class BodyRequest(Request):
    """A request with a JSON body of limited size. Reading it raises HTTPException: 400 if it is not JSON, 413 if it is
    larger than ``bytes_max``.
    """

    bytes_max: ClassVar = 10 * 1024 * 1024
    _read: bytes | None = None
    _parsed: Any = None

    async def body(self) -> bytes:
        """Return the bytes of the body."""
        if self._read is None:
            read = bytearray()
            async for piece in self.stream():
                read += piece
                if len(read) > self.bytes_max:
                    raise HTTPException(413, f"The body of the request has more than {self.bytes_max} bytes")
            self._read = bytes(read)
        return self._read

    async def json(self) -> Any:
        """Return the parsed body."""
        if self._parsed is None:
            self._parsed = parse(await self.body())
        return self._parsed


def parse(body: bytes) -> Any:
    """Parse JSON. Raises HTTPException (400) if it is missing or malformed."""
    if not body.strip():
        raise HTTPException(400, "The request has no body; it must be JSON")
    try:
        found = json.loads(body, parse_constant=_no_constant, parse_float=Number)
        if b"\\u" in body:
            json.dumps(found, ensure_ascii=False).encode()  # JSON can express a lone surrogate, UTF-8 cannot
        return found
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"The body of the request is not JSON: {error}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def error(
    status: int, message: str, headers: Mapping[str, str] | None = None, *, code: int | None = None
) -> JSONResponse:
    """Return the response for an error. ``code`` is the error code if it differs from the status."""
    return JSONResponse({"error_code": code or status, "message": message}, status, headers)


def message_of(error: HTTPException) -> str:
    """Return the text of an error. If it has none of its own, this is the text of Kafka Connect's server (Jersey)."""
    phrase = HTTPStatus(error.status_code).phrase
    return f"HTTP {error.status_code} {phrase}" if error.detail == phrase else error.detail
