"""The statistics of librdkafka, for ``--print-metrics``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

_EVERY_MS: Final = 1000


@dataclass(slots=True)
class Metrics:
    """The last statistics a client gave, if they were asked for."""

    asked: bool
    last: str = ""

    def settings(self) -> dict[str, Any]:
        """What the client needs to give them."""
        return {"statistics.interval.ms": _EVERY_MS, "stats_cb": self._take} if self.asked else {}

    def _take(self, text: str) -> None:
        self.last = text

    def show(self) -> None:
        """Print them as JSON."""
        if self.last:
            print(json.dumps(json.loads(self.last), indent=2))
