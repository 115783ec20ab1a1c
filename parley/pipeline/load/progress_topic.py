"""The progress of loads, in a topic of the cluster: other programs (the console) see it wherever the load runs.

A load writes a record to the topic ``parley-loads`` when it begins, every ``BEAT_S`` while it runs, and when it ends
(``reporting``). The key is the load's id, the value JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final, Self
from urllib.parse import urlsplit, urlunsplit

from parley.pipeline.mirror.internal_records import Encoded, MalformedRecord

LOADS: Final = "parley-loads"
BEAT_S: Final = 2.0
EXPORT, IMPORT = "export", "import"
RUNNING, DONE, FAILED = "running", "done", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """The progress of a load at ``at_ms``. Times are in milliseconds since 1970."""

    id: str
    topic: str
    place: str
    """The folder or the table, without the credentials that a URL may contain."""
    direction: str
    """``export`` or ``import``."""
    state: str = RUNNING
    begun_ms: int
    at_ms: int
    wanted: int | None = None
    """The offsets to export, or the rows to import; None if unknown."""
    done: int = 0

    def encode(self) -> Encoded:
        return Encoded(self.id.encode(), json.dumps(asdict(self)).encode())

    @classmethod
    def decode(cls, value: bytes | None) -> Self:
        """Decode a record's value. Raises MalformedRecord."""
        try:
            found = json.loads(value or b"")
            wanted = found["wanted"]
            return cls(
                id=str(found["id"]),
                topic=str(found["topic"]),
                place=str(found["place"]),
                direction=str(found["direction"]),
                state=str(found["state"]),
                begun_ms=int(found["begun_ms"]),
                at_ms=int(found["at_ms"]),
                wanted=None if wanted is None else int(wanted),
                done=int(found["done"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise MalformedRecord(f"not the progress of a load: {error!r}") from None


def shown_place(uri: str) -> str:
    """Return a URI without the parts that may contain credentials: user, password and query."""
    if "://" not in uri:
        return uri
    parts = urlsplit(uri)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
