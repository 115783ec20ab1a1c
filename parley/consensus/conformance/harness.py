"""What the author of a backend provides: a fresh store, clients of it, and the faults that the checks act through.

Implement ``Harness``; for a store that several processes can use derive from ``ProcessHarness``, which knows how to
run, kill, stop and resume peers as processes and to move their wall clock. Nothing here is optional: a fault that a
harness does not make is a property that nobody has tested.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from parley.consensus.backend import Backend


class Peer(ABC):
    """Another process with a client of its own, in one of the roles of ``conformance.roles``."""

    @abstractmethod
    async def said(self) -> list[Any]:
        """The next thing it says; waits for it.

        :raises EOFError: it has ended, or was killed.
        """

    @abstractmethod
    async def kill(self) -> None:
        """End it as SIGKILL does: no farewell to the store. Nothing happens if it has ended."""

    @abstractmethod
    async def stop(self) -> None:
        """Let it stand still as SIGSTOP does; returns when it does."""

    @abstractmethod
    async def resume(self) -> None:
        """Let it go on as SIGCONT does, from where it stood."""


class Harness(ABC):
    """A store and what can happen to it. Used for many checks, one after the other: ``start``, ..., ``stop``.

    :cvar allowance_s: added to declared bounds in time, for what a busy machine adds to any measurement, in seconds.
    :cvar patience: how much longer than on a fast store to wait for what has no bound but must come, before giving up.
    """

    allowance_s: ClassVar[float] = 5.0
    patience: ClassVar[float] = 1.0

    @abstractmethod
    async def start(self) -> None:
        """Make a fresh, empty store, never used before. (A new prefix on a server that runs already will do.)"""

    @abstractmethod
    async def stop(self) -> None:
        """Remove the store and undo all faults. Also called when ``start`` failed half-way."""

    @abstractmethod
    def client(self) -> Backend:
        """One more client of the store, not opened."""

    @abstractmethod
    async def peer(self, role: str, arguments: Mapping[str, Any]) -> Peer:
        """One more process with a client of its own, in this role."""

    @abstractmethod
    async def cut(self, client: Backend) -> None:
        """Cut a client off from the store until ``restore``: nothing it sends arrives, nothing is answered."""

    @abstractmethod
    async def restore(self, client: Backend) -> None:
        """End ``cut``. Nothing happens to a client that is not cut off."""

    @abstractmethod
    async def lose_response(self, client: Backend, *, applied: bool) -> None:
        """Make the fate of the client's next write unknown to it, after the store has applied it or without."""

    @abstractmethod
    async def wipe(self) -> None:
        """Lose all that is stored, as when somebody empties the server's disk; the address stays the same."""

    @abstractmethod
    async def restart(self) -> None:
        """Restart the server with its data. Where there is none, break every client's connection for a moment."""

    @abstractmethod
    async def move_wall_clock(self, seconds: float) -> None:
        """Put the wall clock of the server and of all peers, running and to come, that far off the true time."""
