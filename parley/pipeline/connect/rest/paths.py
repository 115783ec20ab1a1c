"""Which paths are refused before anything is looked up, since two readers of them might mean different things.

A name may hold any character, written as its UTF-8 in %-escapes; but not those that split paths or escape again. Texts
are those of the server (Jetty) that Kafka Connect has.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

__all__ = ["ambiguity"]

_BROKEN: Final = re.compile(rb"%(?![0-9a-fA-F]{2})|%00")
_DOTS: Final = re.compile(rb"(?:^|/)(?=[^/]*%)(?:\.|%2e){1,2}(?:/|$)")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f\\]")


def ambiguity(path: bytes) -> str | None:
    """Why a path is refused, as it came in the request; None where it is not.

    >>> ambiguity(b"/connectors/a%20b/status")
    >>> ambiguity(b"/connectors/a%2Fb")
    'Ambiguous URI path separator'
    """
    lowered = path.lower()
    if _BROKEN.search(path):
        return "Bad Request"
    if b"%2f" in lowered:
        return "Ambiguous URI path separator"
    if b"%25" in lowered:
        return "Ambiguous URI path encoding"
    if _DOTS.search(lowered):
        return "Ambiguous URI path segment"
    if b"//" in path:
        return "Ambiguous URI empty segment"
    read = unquote_to_bytes(path)
    if _CONTROL.search(read):
        return "Suspicious Path Character"
    try:
        read.decode()
    except UnicodeDecodeError:
        return "Bad UTF-8 encoding"
    return None
