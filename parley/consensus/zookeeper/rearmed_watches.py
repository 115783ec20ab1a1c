"""The two one-shot watches with which a client follows a store in ZooKeeper; they are set again whenever they fire.

One waits for the next entry of the change log, the other for a session to start or end. Both are sent before the read
that they guard, and again after every reconnect, so that no change falls between them.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kazoo.protocol.serialization import Exists, GetChildren

from parley.consensus.zookeeper.key_layout import KeyLayout


class RearmedWatches:
    """The two watches of one client. ``fired`` is set when one of them fires."""

    def __init__(self, layout: KeyLayout) -> None:
        self.fired = asyncio.Event()
        self._layout = layout
        self._entry_watched: int | None = None
        self._sessions_watched = False

    def requests_to_rearm(self, next_entry: int) -> list[Any]:
        """Return the requests that set the watches that are not set. From now on, these count as set.

        ``next_entry`` is the number of the log's next entry.
        """
        requests: list[Any] = []
        if self._entry_watched != next_entry:
            self._entry_watched = next_entry
            requests.append(Exists(self._layout.entry(next_entry), self._on_entry))
        if not self._sessions_watched:
            self._sessions_watched = True
            requests.append(GetChildren(self._layout.sessions, self._on_sessions))
        return requests

    def forget(self) -> None:
        """Set both watches again at the next opportunity, because a request to set them failed."""
        self._entry_watched, self._sessions_watched = None, False

    def _on_entry(self, event: object) -> None:
        self._entry_watched = None
        self.fired.set()

    def _on_sessions(self, event: object) -> None:
        self._sessions_watched = False
        self.fired.set()
