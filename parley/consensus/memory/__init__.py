"""A coordination store inside one process: for embedding, tests and simulation.

``memory:`` is a store of its own for each backend; ``memory://name`` is one store for all the backends of the process
that name it. Nothing outlives the last reference to the store. Everything happens on one event loop, in the order of
the calls and by that loop's timers: no threads, so a simulated loop replays it exactly.

For fault tests a client can be cut off (``disconnect``, ``reconnect``), one of its writes made ambiguous
(``lose_next_answer``), its calls delayed (``delay_s``), and in the store a session expired (``expire``) or everything
wiped (``wipe``).
"""

from __future__ import annotations

from parley.consensus.memory.backend import MemoryBackend
from parley.consensus.memory.store import CAPABILITIES, MemoryStore

__all__ = ["CAPABILITIES", "MemoryBackend", "MemoryStore"]
