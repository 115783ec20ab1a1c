"""``python -m tests.system.skewed SECONDS start ...``: ``parley start ...`` with a wall clock that is so much ahead."""

from __future__ import annotations

import sys

from parley.broker.runtime import clock
from parley.tools.cli import main

if __name__ == "__main__":
    ahead_ms = int(sys.argv.pop(1)) * 1000
    right = type(clock.SYSTEM_CLOCK).wall_ms
    type(clock.SYSTEM_CLOCK).wall_ms = lambda self: right(self) + ahead_ms  # type: ignore[method-assign]
    main()
