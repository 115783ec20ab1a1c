"""The in-memory store of a broker in the test's process, without the wrapper that measures it."""

from __future__ import annotations

from parley.broker.membership.measured_store import MeasuredBackend
from parley.consensus.backend import Backend
from parley.consensus.memory import MemoryBackend


def memory_backend(backend: Backend) -> MemoryBackend:
    """Return the client of the memory store that ``backend`` measures."""
    assert isinstance(backend, MeasuredBackend)
    assert isinstance(backend.backend, MemoryBackend)
    return backend.backend
