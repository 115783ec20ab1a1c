"""The interface that the author of a backend implements for the kit: fresh stores, clients and faults.

Implement ``Harness``. For a store that several processes can use, derive from ``ProcessHarness``, which runs, kills,
stops and resumes peers as processes and moves their wall clock. Nothing is optional: without one of the faults, a
property would not be tested.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from parley.consensus.backend import Backend


class Peer(ABC):
    """Another process with its own client. It plays one of the roles in ``conformance.roles``."""

    @abstractmethod
    async def said(self) -> list[Any]:
        """Wait for the next message of the peer. Raises EOFError if the peer has ended or was killed."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill the peer as SIGKILL does, without ending its session. Does nothing if the peer has ended."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the peer as SIGSTOP does. Returns when it has stopped."""

    @abstractmethod
    async def resume(self) -> None:
        """Resume the peer as SIGCONT does."""


class Harness(ABC):
    """A store and its faults. The kit runs many checks on a harness, one after the other: ``start``, ..., ``stop``."""

    allowance_s: ClassVar[float] = 5.0
    """The time in seconds that is added to declared time limits, for the delays of a busy machine."""
    patience: ClassVar[float] = 1.0
    """A factor for the time to wait for events that must happen but have no declared limit; more than 1 for a slow
    store."""

    @abstractmethod
    async def start(self) -> None:
        """Create a fresh, empty store that was never used. A new prefix on a running server is enough."""

    @abstractmethod
    async def stop(self) -> None:
        """Remove the store and undo all faults. Also called if ``start`` failed."""

    @abstractmethod
    def client(self) -> Backend:
        """Return a new client of the store, not yet open."""

    @abstractmethod
    async def peer(self, role: str, arguments: Mapping[str, Any]) -> Peer:
        """Start a new process with its own client, in this role."""

    @abstractmethod
    async def cut(self, client: Backend) -> None:
        """Disconnect a client from the store until ``restore``: no request and no response arrives."""

    @abstractmethod
    async def restore(self, client: Backend) -> None:
        """Let a client that ``cut`` has disconnected reach the store again. Does nothing for other clients."""

    @abstractmethod
    async def lose_response(self, client: Backend, *, applied: bool) -> None:
        """Lose the response to the client's next write. If ``applied``, the store applies the write first; otherwise
        the write is lost, too."""

    @abstractmethod
    async def wipe(self) -> None:
        """Delete everything in the store, as if the server's disk had been emptied. The address stays the same."""

    @abstractmethod
    async def restart(self) -> None:
        """Restart the server with its data. Without a server, disconnect every client briefly."""

    @abstractmethod
    async def move_wall_clock(self, seconds: float) -> None:
        """Set the wall clock of the server and of all current and future peers to differ from the true time by
        ``seconds``."""
