"""A coordination store inside one process: for embedding, tests and simulation.

``memory:`` gives each backend a separate store; all backends of the process with the same ``memory://name`` share one.
A store exists until the last reference to it is dropped. Everything happens on one event loop, in the order of the
calls and of the loop's timers. There are no threads, so a simulated loop replays everything exactly.

For fault tests, a client can be disconnected (``disconnect``, ``reconnect``), lose the response to a write
(``lose_next_response``) and be slowed down (``delay_s``); the store can expire a session (``expire``) and lose all its
data (``wipe``).
"""

from __future__ import annotations

from parley.consensus.memory.backend import MemoryBackend
from parley.consensus.memory.store import CAPABILITIES, MemoryStore

__all__ = ["CAPABILITIES", "MemoryBackend", "MemoryStore"]
