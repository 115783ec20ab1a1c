"""What comes with a request, checked: its content type, its size, its JSON, and the kinds of values in it.

Rules: whatever is wrong with it is answered with `Refused`, which names the HTTP status; nothing is read beyond
`BODY_BYTES_MAX`. Numbers and booleans in a connector's configuration become the text that they were written as, since
every value of a configuration is text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request

from parley.pipeline.connect.herder import HerderError, Offsets

__all__ = [
    "BODY_BYTES_MAX",
    "Refused",
    "flag",
    "only",
    "patch_of",
    "read",
    "read_offsets",
    "read_text",
    "refuse_other_kinds",
    "text_map",
]

BODY_BYTES_MAX: Final = 10 * 1024 * 1024
_JSON: Final = "application/json"


class Refused(HerderError):
    """A request that is not even looked at any further."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read(request: Request, *, texts: bool = False) -> Any:
    """The JSON in a request's body; with `texts` numbers are the text they were written as.

    Raises Refused: 415 for what does not say that it is JSON, 413 for more than `BODY_BYTES_MAX`, 400 for the rest.
    """
    if not says_json(request):
        raise Refused(415, "HTTP 415 Unsupported Media Type")
    return parse(await read_text(request), texts=texts)


def says_json(request: Request) -> bool:
    """Whether the request says that its body is JSON."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == _JSON


def refuse_other_kinds(request: Request) -> None:
    """Raises Refused (415) if a request whose body is not read has one that is declared as something else than JSON."""
    headers = request.headers
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if has_body and "content-type" in headers and not says_json(request):
        raise Refused(415, "HTTP 415 Unsupported Media Type")


async def read_text(request: Request) -> bytes:
    """The bytes of a request's body. Raises Refused (413)."""
    read_before: bytes | None = getattr(request.state, "body", None)  # it can be read only once
    if read_before is not None:
        return read_before
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise Refused(413, f"the body of the request has more than {BODY_BYTES_MAX} bytes")
    request.state.body = bytes(body)
    return bytes(body)


def parse(body: bytes, *, texts: bool = False) -> Any:
    """JSON as values. Raises Refused (400)."""
    if not body.strip():
        raise Refused(400, "the request has no body; it must be JSON")
    number = str if texts else None
    try:
        found = json.loads(body, parse_constant=_no_constant, parse_int=number, parse_float=number)
        if b"\\u" in body:
            json.dumps(found, ensure_ascii=False).encode()  # half of a character can be written, but stands for nothing
        return found
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body of the request is not JSON: {error}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def text_map(value: Any, what: str) -> dict[str, str | None]:
    """An object of text, as configurations are. Raises Refused (400)."""
    if not isinstance(value, dict):
        raise Refused(400, f"{what} must be a JSON object of strings, and is {_kind(value)}")
    return {key: _text(one, f"'{key}' in {what}") for key, one in value.items()}


def patch_of(config: Mapping[str, str | None]) -> dict[str, str]:
    """A configuration without the keys that have no value."""
    return {key: value for key, value in config.items() if value is not None}


def _text(value: Any, what: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    raise Refused(400, f"{what} must be a string, and is {_kind(value)}")


def read_offsets(value: Any) -> Offsets:
    """The offsets of a request to alter them (KIP-875). Raises Refused (400)."""
    only(value, "offsets")
    offsets = value.get("offsets") if isinstance(value, dict) else None
    if not isinstance(offsets, list) or not offsets:
        raise Refused(400, "Partitions / offsets need to be provided for an alter offsets request")
    return [_offset(one) for one in offsets]


def _offset(value: Any) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    if not isinstance(value, dict):
        raise Refused(400, f"each of the offsets must be a JSON object, and one is {_kind(value)}")
    only(value, "partition", "offset")
    partition, offset = value.get("partition"), value.get("offset")
    if partition is None:
        raise Refused(400, "Partition objects cannot be null")
    if not isinstance(partition, dict) or not (offset is None or isinstance(offset, dict)):
        raise Refused(400, "partition and offset must be JSON objects")
    return partition, offset


def only(value: Any, *known: str) -> None:
    """Raises Refused (400) where an object has other fields."""
    unknown = value.keys() - {*known} if isinstance(value, dict) else ()
    if unknown:
        raise Refused(400, f'Unrecognized field "{min(unknown)}" (known are: {", ".join(known)})')


def flag(request: Request, name: str, default: bool = False) -> bool:
    """A switch among the request's parameters: on for "true" in any case, off for anything else; the first counts."""
    given = request.query_params.getlist(name)
    return given[0].lower() == "true" if given else default


_KINDS: Final[Sequence[tuple[type, str]]] = (
    (dict, "an object"),
    (list, "an array"),
    (str, "a string"),
    (bool, "a boolean"),
    (int, "a number"),
    (float, "a number"),
)


def _kind(value: Any) -> str:
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "null")
