"""Sessions: one ephemeral znode each. Those of one TTL share a connection, whose session timeout is that TTL.

Each session is renewed by itself, by a read of its own znode on that connection: the answer says both that ZooKeeper
had heard of us when it was sent, and that the session is still there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.serialization import Delete, Exists

from parley.consensus.errors import CoordinationError, Unauthorized, Unavailable, WrongStore
from parley.consensus.session import Session, SessionState
from parley.consensus.zookeeper.connection import Connection, Endpoint, LostAnswer
from parley.consensus.zookeeper.key_layout import Layout
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


class Link:
    """A connection that carries the sessions of one TTL, and ends with the last of them."""

    def __init__(self, endpoint: Endpoint, ttl_ms: int, spawn: Spawn) -> None:
        self.orphans: list[str] = []  # znodes that may have been made although nobody was told
        self._spawn = spawn
        self.connection = Connection(endpoint, ttl_ms, self._on_state, pings=False)
        self.sessions: dict[str, ZookeeperSession] = {}
        self.opening = 0
        self.connection.start()

    @property
    def idle(self) -> bool:
        """Whether nobody needs it any more."""
        return not self.sessions and not self.opening

    def _on_state(self, connected: bool | None) -> None:
        for session in tuple(self.sessions.values()):
            if connected:
                session.renew()
            elif connected is None:
                session.lose()
            else:
                session.suspend()
        if connected is None:
            self.orphans.clear()
        elif connected:
            for path in self.orphans:
                self._spawn(self._remove_orphan(path), "removal of a session nobody has")

    async def _remove_orphan(self, path: str) -> None:
        try:
            await self.connection.call(Delete(path, -1), 0)
        except NoNodeError:
            pass
        except (LostAnswer, CoordinationError, KazooException):
            return
        if path in self.orphans:
            self.orphans.remove(path)


class ZookeeperSession(Session):
    """One session.

    :ivar keys: the keys bound to it by this client, for sweeping up.
    """

    def __init__(
        self,
        session_id: str,
        ttl_ms: int,
        sent_at: float,
        link: Link,
        path: str,
        spawn: Spawn,
        on_end: Callable[[ZookeeperSession], None],
    ) -> None:
        super().__init__(session_id, ttl_ms, sent_at)
        self.keys: dict[str, None] = {}
        self._link = link
        self._path = path
        self._spawn = spawn
        self._on_end = on_end
        self._renewing = False
        self._renewal = self._loop.call_later(ttl_ms / 3000, self.renew)
        link.sessions[session_id] = self
        self.add_callback(self._on_change)

    def renew(self) -> None:
        """Renew now, and again in a third of the TTL."""
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
            found = await self._link.connection.call(Exists(self._path, None), 0)
        except (LostAnswer, CoordinationError, KazooException):
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
            self._link.sessions.pop(self.id, None)
            self._on_end(self)

    async def close(self) -> None:
        if self._state is SessionState.LOST:
            return
        self.lose()
        await self.remove()

    async def remove(self) -> None:
        """Delete the znode.

        :raises Unavailable: ZooKeeper cannot be reached.
        """
        try:
            await self._link.connection.call(Delete(self._path, -1), 0.0)
        except NoNodeError:
            pass
        except (LostAnswer, KazooException) as error:
            raise Unavailable(f"session {self.id} was not ended and runs out by itself: {error}") from error


async def ephemeral(link: Link, layout: Layout, identity: str, session_id: str, acl: Acl, within_s: float) -> float:
    """Create the znode of a new session; the loop time at which that was sent.

    :raises WrongStore: the store is not the one it was.
    :raises Unauthorized: these credentials may not write the tree.
    :raises Unavailable: no answer.
    """
    ops: list[WriteOp] = [
        CheckVersion(f"{layout.identities}/{identity}"),
        Create(layout.session(session_id), b"", acl, EPHEMERAL),
    ]
    await link.connection.connected(within_s)
    sent_at = asyncio.get_running_loop().time()
    try:
        first, second = await link.connection.call(Multi(ops), 0)
    except LostAnswer as error:
        link.orphans.append(layout.session(session_id))
        raise Unavailable(str(error)) from error
    if first == Failed(NO_NODE):
        raise WrongStore(f"the store {identity} is not there any more; was ZooKeeper's data deleted?")
    if second == Failed(NO_AUTH):
        raise Unauthorized("these credentials may not write the tree")
    if isinstance(second, Failed):
        raise Unavailable(f"ZooKeeper made no session (error {second.code})")
    return sent_at
