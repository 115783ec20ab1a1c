"""Rejects paths that two programs might interpret differently, before they are used.

A name may contain any character, as UTF-8 in %-escapes, except those that divide paths or start an escape. The messages
are those of Kafka Connect's server (Jetty).
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

_BROKEN: Final = re.compile(rb"%(?![0-9a-fA-F]{2})|%00")
_DOTS: Final = re.compile(rb"(?:^|/)(?=[^/]*%)(?:\.|%2e){1,2}(?:/|$)")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f\\]")


def ambiguity(path: bytes) -> str | None:
    """Return the reason why a path, as in the request, is rejected; None if it is acceptable.

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
