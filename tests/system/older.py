"""``python -m tests.system.older start ...``: ``parley start ...`` as a release that has fewer APIs."""

from __future__ import annotations

from parley.broker.api.log_dirs import LogDirsApi
from parley.protocol.messages.log_dirs import AlterReplicaLogDirsRequest
from parley.tools.cli import main

if __name__ == "__main__":
    of_now = LogDirsApi.routes
    LogDirsApi.routes = lambda self: {  # type: ignore[method-assign]
        key: handler for key, handler in of_now(self).items() if key != AlterReplicaLogDirsRequest.API_KEY
    }
    main()
