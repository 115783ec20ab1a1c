"""An HTTP client that waits as long as a busy machine may need. The default of ``httpx`` is five seconds."""

from __future__ import annotations

from typing import Final

import httpx

HTTP_TIMEOUT_S: Final = 60
HTTP: Final = httpx.Client(timeout=HTTP_TIMEOUT_S, limits=httpx.Limits(max_keepalive_connections=0))
"""It keeps no connection, because tests end their servers."""
