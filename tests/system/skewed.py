"""``python -m tests.system.skewed SECONDS start ...``: ``parley start ...`` with a wall clock that is ahead."""

from __future__ import annotations

import sys
import time

from parley.broker.runtime import clock
from parley.tools.cli import main

if __name__ == "__main__":
    ahead_ms = int(sys.argv.pop(1)) * 1000
    right, right_s = type(clock.SYSTEM_CLOCK).wall_ms, time.time
    type(clock.SYSTEM_CLOCK).wall_ms = lambda self: right(self) + ahead_ms  # type: ignore[method-assign]
    time.time = lambda: right_s() + ahead_ms / 1000  # of libraries, such as that of the metrics
    main()
