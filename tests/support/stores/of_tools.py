"""The servers of stores that Parley's tools run, at ports that this test process reserves.

The tools find free ports and release them for the server. Until the server listens, which takes seconds on a busy
machine, the system may give such a port to another test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from parley.tools import store_servers
from parley.tools.store_locks import Lock
from tests.support.stores.servers import free_ports


@contextmanager
def store_server(name: str, folder: Path, *, lock: Lock | None = None) -> Iterator[str]:
    """Run a server as ``parley.tools.store_servers.store_server`` does."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store_servers, "_free_ports", lambda first: free_ports(3))
            url = stack.enter_context(store_servers.store_server(name, folder, lock=lock))
        yield url
