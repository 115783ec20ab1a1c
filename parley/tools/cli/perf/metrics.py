"""The statistics of librdkafka, for ``--print-metrics``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

_EVERY_MS: Final = 1000


@dataclass(slots=True)
class Metrics:
    """The latest statistics of a client. They are collected only if ``--print-metrics`` is given."""

    is_wanted: bool
    last: str = ""

    def settings(self) -> dict[str, Any]:
        """Return the client settings that make librdkafka report statistics. Empty without ``--print-metrics``."""
        return {"statistics.interval.ms": _EVERY_MS, "stats_cb": self._take} if self.is_wanted else {}

    def _take(self, text: str) -> None:
        self.last = text

    def show(self) -> None:
        """Print the statistics as JSON, if ``--print-metrics`` is given."""
        if self.last:
            print(json.dumps(json.loads(self.last), indent=2))
