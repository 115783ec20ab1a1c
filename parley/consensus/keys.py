"""Keys: segments joined by ``/``, as every store can hold them.

A segment is one or more visible ASCII characters other than ``/``, and not ``.`` or ``..`` (ZooKeeper refuses those).
So the order of keys as text is their order as bytes. A key may have keys below it, but one bound to a session must not
(ZooKeeper's ephemeral nodes have no children). Free text goes in as ``segment(text)``.
"""

from __future__ import annotations

import re

_KEY = re.compile(r"(?!\.{1,2}(?:/|$))[!-.0-~]+(?:/(?!\.{1,2}(?:/|$))[!-.0-~]+)*\Z")
_UNSAFE = re.compile(rb"[^A-Za-z0-9_.~@:=+,-]")


def check_key(key: str) -> None:
    """Accept a legal key.

    :raises ValueError: the key is empty, starts or ends with ``/``, or has an illegal segment.
    """
    if not _KEY.match(key):
        raise ValueError(f"{key!r} is not a key: visible ASCII in segments joined by single slashes, none . or ..")


def segment(text: str) -> str:
    """Any text as one segment, different texts as different segments; ``text_of`` is the way back.

    Letters, digits and ``_.~@:=+,-`` stay readable, all else is escaped as in a URL (``%2F``).
    """
    escaped = _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], text.encode("utf-8", "surrogatepass")).decode("ascii")
    return {"": "%", ".": "%2E", "..": "%2E%2E"}.get(escaped, escaped)


def text_of(escaped: str) -> str:
    """The text that ``segment`` made this segment of."""
    if escaped == "%":
        return ""
    raw = re.sub(rb"%([0-9A-F]{2})", lambda match: bytes.fromhex(match[1].decode("ascii")), escaped.encode("ascii"))
    return raw.decode("utf-8", "surrogatepass")
