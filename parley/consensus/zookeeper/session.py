"""Sessions: one ephemeral znode each. Sessions with the same TTL share a connection whose session timeout is that TTL.

Each session is renewed separately, by a read of its znode over that connection. The response proves both that ZooKeeper
received the request, and that the session still exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.serialization import Delete, Exists
from kazoo.protocol.states import KazooState

from parley.consensus.errors import CoordinationError, Unauthorized, Unavailable
from parley.consensus.session import Session, SessionState
from parley.consensus.zookeeper.connection import Connection, Endpoint, ResponseLost
from parley.consensus.zookeeper.consistent_reads import store_deleted
from parley.consensus.zookeeper.key_layout import KeyLayout
from parley.consensus.zookeeper.multi_requests import (
    EPHEMERAL,
    NO_AUTH,
    NO_NODE,
    Acl,
    CheckVersion,
    Create,
    Failed,
    Multi,
    WriteOp,
)

Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class SessionConnection:
    """A connection for the sessions with one TTL. It is closed after the last of these sessions."""

    def __init__(self, endpoint: Endpoint, ttl_ms: int, spawn: Spawn) -> None:
        self.orphans: list[str] = []  # paths of znodes that may exist: the response to their creation was lost
        self._spawn = spawn
        self.connection = Connection(endpoint, ttl_ms, self._on_state, pings=False)
        self.sessions: dict[str, ZookeeperSession] = {}
        self.opening = 0
        self.connection.start()

    @property
    def idle(self) -> bool:
        """True if no session needs this connection."""
        return not self.sessions and not self.opening

    def _on_state(self, state: KazooState) -> None:
        for session in tuple(self.sessions.values()):
            match state:
                case KazooState.CONNECTED:
                    session.renew()
                case KazooState.SUSPENDED:
                    session.suspend()
                case _:
                    session.lose()
        if state == KazooState.CONNECTED:
            for path in self.orphans:
                self._spawn(self._remove_orphan(path), "removal of an orphaned session")
        elif state == KazooState.LOST:
            self.orphans.clear()

    async def _remove_orphan(self, path: str) -> None:
        try:
            await self.connection.call(Delete(path, -1), 0)
        except NoNodeError:
            pass
        except (ResponseLost, CoordinationError, KazooException):
            return
        if path in self.orphans:
            self.orphans.remove(path)


class ZookeeperSession(Session):
    """A session of this client. ``keys`` contains the keys that the client has bound to it, which are deleted after its
    end."""

    def __init__(
        self,
        session_id: str,
        ttl_ms: int,
        sent_at: float,
        shared: SessionConnection,
        path: str,
        spawn: Spawn,
        on_end: Callable[[ZookeeperSession], None],
    ) -> None:
        super().__init__(session_id, ttl_ms, sent_at)
        self.keys: dict[str, None] = {}
        self._shared = shared
        self._path = path
        self._spawn = spawn
        self._on_end = on_end
        self._renewing = False
        self._renewal = self._loop.call_later(ttl_ms / 3000, self.renew)
        shared.sessions[session_id] = self
        self.add_callback(self._on_change)

    def renew(self) -> None:
        """Renew the session now, and then every third of the TTL."""
        self._renewal.cancel()
        if self.state is SessionState.LOST:
            return
        self._renewal = self._loop.call_later(self.ttl_ms / 3000, self.renew)
        if not self._renewing:
            self._renewing = True
            self._spawn(self._renew(), f"renewal of session {self.id}")

    async def _renew(self) -> None:
        sent_at = self._loop.time()
        try:
            found = await self._shared.connection.call(Exists(self._path, None), 0)
        except (ResponseLost, CoordinationError, KazooException):
            return
        finally:
            self._renewing = False
        if found is None:
            self.lose()
        else:
            self.renewed(sent_at)

    def _on_change(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._renewal.cancel()
            self._shared.sessions.pop(self.id, None)
            self._on_end(self)

    async def close(self) -> None:
        if self._state is SessionState.LOST:
            return
        self.lose()
        await self.remove()

    async def remove(self) -> None:
        """Delete the session's znode. Raises Unavailable if ZooKeeper cannot be reached."""
        try:
            await self._shared.connection.call(Delete(self._path, -1), 0.0)
        except NoNodeError:
            pass
        except (ResponseLost, KazooException) as error:
            raise Unavailable(f"session {self.id} was not ended and will expire: {error}") from error


async def create_session_znode(
    shared: SessionConnection, layout: KeyLayout, identity: str, session_id: str, acl: Acl, within_s: float
) -> float:
    """Create the znode of a new session. Returns the loop time at which the request was sent.

    Raises WrongStore if the store is no longer the one that was opened. Raises Unauthorized if these credentials may
    not write the tree. Raises Unavailable if there is no response.
    """
    ops: list[WriteOp] = [
        CheckVersion(f"{layout.identities}/{identity}"),
        Create(layout.session(session_id), b"", acl, EPHEMERAL),
    ]
    await shared.connection.connected(within_s)
    sent_at = asyncio.get_running_loop().time()
    try:
        first, second = await shared.connection.call(Multi(ops), 0)
    except ResponseLost as error:
        shared.orphans.append(layout.session(session_id))
        raise Unavailable(str(error)) from error
    if first == Failed(NO_NODE):
        raise store_deleted(identity)
    if second == Failed(NO_AUTH):
        raise Unauthorized("these credentials may not write to the tree")
    if isinstance(second, Failed):
        raise Unavailable(f"ZooKeeper did not create the session (error {second.code})")
    return sent_at
