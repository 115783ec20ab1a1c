"""Keys: segments joined by ``/``, in a form that every store can hold.

A segment consists of one or more visible ASCII characters other than ``/``, but is not ``.`` or ``..``, which ZooKeeper
rejects. So keys sort the same as text and as bytes. A key may have keys below it, unless it is bound to a session
(ZooKeeper's ephemeral nodes have no children). Use ``segment(text)`` to put arbitrary text into a key.
"""

from __future__ import annotations

import re

_KEY = re.compile(r"(?!\.{1,2}(?:/|$))[!-.0-~]+(?:/(?!\.{1,2}(?:/|$))[!-.0-~]+)*\Z")
_UNSAFE = re.compile(rb"[^A-Za-z0-9_.~@:=+,-]")


def check_key(key: str) -> None:
    """Check that a key is legal.

    Raises ValueError if it is empty, starts or ends with ``/``, or has an illegal segment.
    """
    if not _KEY.match(key):
        raise ValueError(
            f"{key!r} is not a valid key: use segments of visible ASCII, none of them . or .., joined by single slashes"
        )


def segment(text: str) -> str:
    """Encode any text as one segment. Different texts give different segments. ``text_of`` decodes it.

    Letters, digits and ``_.~@:=+,-`` remain readable; all other characters are escaped as in a URL (``%2F``).
    """
    escaped = _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], text.encode("utf-8", "surrogatepass")).decode("ascii")
    return {"": "%", ".": "%2E", "..": "%2E%2E"}.get(escaped, escaped)


def text_of(escaped: str) -> str:
    """Return the text that ``segment`` has encoded as ``escaped``."""
    if escaped == "%":
        return ""
    raw = re.sub(rb"%([0-9A-F]{2})", lambda match: bytes.fromhex(match[1].decode("ascii")), escaped.encode("ascii"))
    return raw.decode("utf-8", "surrogatepass")
