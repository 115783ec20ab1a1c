"""The store in Consul as requests: which store it is, transactions, sessions, blocking queries."""

from __future__ import annotations

import base64
import json
import random
import re
from contextlib import suppress
from urllib.parse import quote

from parley.consensus.backend import Capabilities, Read, Session, WatchCount
from parley.consensus.consul.address import Address
from parley.consensus.consul.http_client import TIMEOUT_S, Answer, Client, Untrusted
from parley.consensus.consul.transactions import (
    KV,
    Layout,
    Plan,
    capabilities,
    encoded,
    entries,
    fields,
    plan_txn,
    refused,
    results,
    value,
)
from parley.consensus.errors import (
    BadConfig,
    CoordinationError,
    MaybeApplied,
    SessionLost,
    Unauthorized,
    Unavailable,
    Unsupported,
    WrongStore,
)

_IDENTITY = re.compile(r"[0-9a-f]{32}\Z")
_FAREWELL_S = 3.0
# What can be asked for in a path: Go's server redirects paths with empty segments or segments of dots.
_ASKABLE = re.compile(r"(?:(?!\.{1,2}/)[!-.0-~]+/)*(?:(?!\.{1,2}\Z)[!-.0-~]+\Z)?")


class UnknownSession(SessionLost):
    """Consul does not know the session of a put.

    :ivar session: that one.
    """

    def __init__(self, error: CoordinationError, session: Session) -> None:
        super().__init__(*error.args)
        self.session = session


class Store:
    """A store at an address. ``open`` first.

    :ivar layout: where its keys are.
    :ivar identity: its name; "" before it is known.
    """

    def __init__(self, address: Address, rng: random.Random) -> None:
        self.layout = Layout(address.prefix)
        self.identity = ""
        self.capabilities: Capabilities = capabilities(address.ttl_ms_min)
        self._rng = rng
        self._client = Client(address)

    async def open(self, expect_identity: str | None) -> None:
        """Connect, learn the identity or give one to an empty store, prove that keys and sessions can be written.

        :raises CoordinationError: see ``Backend.open``; connections are closed again.
        """
        await self._client.open()
        try:
            self.identity = await self._identify(expect_identity)
            await self._prove_writing()
        except BaseException as error:
            await self._client.close()
            if isinstance(error, Untrusted):
                raise BadConfig(str(error)) from error
            raise

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._client.close()

    async def run(self, plan: Plan, read: Read = Read.LINEARIZABLE) -> list[KV]:
        """Run a transaction; the entries it found and wrote, in order, without the identity.

        :raises UnknownSession: a put is bound to a session that is over.
        :raises CoordinationError: see ``Backend.txn``.
        """
        # A transaction that writes goes through the leader in any case.
        query = "" if plan.writes else "?stale" if read is Read.STALE else "?consistent"
        answer = await self._client.call("PUT", f"/v1/txn{query}", plan.body, writes=plan.writes)
        if answer.status == 200:
            return results(plan, answer.body)
        reason = refused(plan, answer.body)
        if reason.session is not None:
            raise UnknownSession(reason.error, reason.session)
        raise reason.error

    async def watch_count(self) -> WatchCount:
        """The blocking queries that the agent we talk to serves. It writes them down as they begin, every 10 s anew."""
        try:
            answer = await self._client.call("GET", "/v1/agent/metrics", writes=False)
            gauges = json.loads(answer.body)["Gauges"]
        except (CoordinationError, ValueError, KeyError) as error:
            return WatchCount(None, f"the agent does not tell its metrics (its token needs agent read): {error}")
        found = [each["Value"] for each in gauges if each["Name"].endswith(".rpc.queries_blocking")]
        if not found:
            return WatchCount(None, "the agent is no server, or no blocking query began in the last 10 s")
        return WatchCount(round(found[-1]), "blocking queries in Consul's metrics, of one server; up to 20 s old")

    async def verify(self) -> None:
        """:raises WrongStore: the store at this address is not, or not any more, the one that was opened."""
        await self.run(plan_txn(self.layout, self.identity, [], [], self._rng))

    async def wait_for_news(self, prefix: str, index: int, wait_s: float) -> Answer:
        """A blocking query on the names below a prefix of ours."""
        asked = _ASKABLE.match(prefix)
        path = quote(self.layout.data(asked[0] if asked else ""), safe="/")
        return await self._client.query(f"/v1/kv/{path}?keys&separator=/&consistent&index={index}", wait_s)

    # Sessions.

    async def create_session(self, ttl_ms: int) -> str:
        """A session with no health checks, whose keys are deleted with it; its id.

        :raises Unavailable: also where the answer was lost: a session that nobody knows has no keys, and expires.
        """
        wanted = {
            "Name": self.layout.prefix,
            "TTL": f"{ttl_ms}ms",
            "Behavior": "delete",
            "LockDelay": "0s",
            "Checks": [],
            "NodeChecks": [],
        }
        try:
            answer = await self._client.call("PUT", "/v1/session/create", json.dumps(wanted).encode(), writes=True)
        except MaybeApplied as error:
            if "Invalid Session TTL" in str(error):
                raise Unsupported(f"Consul refuses a TTL of {ttl_ms} ms: {error}") from error
            raise Unavailable(str(error)) from error
        with suppress(ValueError, KeyError, TypeError):
            return str(json.loads(answer.body)["ID"])
        raise Unavailable(f"Consul made no session: {answer.body[:300]!r}")

    async def renew_session(self, session_id: str, timeout_s: float) -> bool:
        """Put off the expiry; False if Consul knows no such session.

        :raises Unavailable: nobody knows yet.
        """
        path = f"/v1/session/renew/{session_id}"
        if (await self._client.call("PUT", path, b"", writes=False, timeout_s=timeout_s)).status == 200:
            return True
        # A leader that was elected just now may not have come to the end of its log; where it has not, it answers no
        # consistent read.
        path = f"/v1/session/info/{session_id}?consistent"
        found = await self._client.call("GET", path, writes=False, timeout_s=timeout_s)
        if f'"{session_id}"'.encode() in found.body:
            raise Unavailable("the leader did not know the session a moment ago, and does now")
        return False

    async def destroy_session(self, session_id: str, timeout_s: float = TIMEOUT_S) -> None:
        """End a session, and delete its keys. Nothing happens if there is none."""
        # Ending it twice does no harm, so it may be tried at each agent.
        await self._client.call("PUT", f"/v1/session/destroy/{session_id}", b"", writes=False, timeout_s=timeout_s)

    async def farewell(self, session_id: str) -> None:
        """``destroy_session`` of a client that is leaving and does not wait for long, nor mind."""
        with suppress(CoordinationError):
            await self.destroy_session(session_id, _FAREWELL_S)

    # Which store it is.

    async def _identify(self, expected: str | None) -> str:
        found = await self._read_identity()
        if found is None and expected is None:
            foreign = await self._somebodys_key()
            # What is there may be a store's: another client can have named it since the first look.
            found = await (self._read_identity() if foreign else self._initialise())
            if found is None:
                raise BadConfig(f"{self.layout.prefix}/ in Consul holds what is not a store of ours: {foreign}")
        if expected not in (None, found):
            where = f"below {self.layout.prefix}/"
            raise WrongStore(f"expected the store {expected} {where}, found {found or 'none'}", found=found)
        assert found is not None
        return found

    async def _read_identity(self) -> str | None:
        get = {"Verb": "get", "Key": self.layout.identity}
        answer = await self._client.call("PUT", "/v1/txn?consistent", encoded([get]), writes=False)
        if answer.status == 409:
            reason = str(fields(answer.body, "Errors"))
            if "Permission denied" in reason or "ACL" in reason:
                raise Unauthorized(f"Consul refuses to read {self.layout.identity}: {reason}")
            return None
        if not (found := entries(answer.body)):
            raise Unauthorized(f"the ACL token may not read {self.layout.prefix}/")
        name = value(found[0]).decode("ascii", "replace")
        if not _IDENTITY.match(name):
            raise BadConfig(f"{self.layout.identity} in Consul is not the name of a store of ours")
        return name

    async def _somebodys_key(self) -> str | None:
        """A key in the store's folder, if there is one."""
        path = f"/v1/kv/{quote(self.layout.prefix)}/?keys&separator=/&consistent"
        answer = await self._client.call("GET", path, writes=False)
        names: list[str] = json.loads(answer.body) if answer.status == 200 else []
        return names[0] if names else None

    async def _initialise(self) -> str:
        """Name the store; the name, or that which another client gave it meanwhile."""
        name = f"{self._rng.getrandbits(128):032x}"
        ops = [
            {"Verb": "check-not-exists", "Key": self.layout.identity},
            {"Verb": "set", "Key": self.layout.identity, "Value": base64.b64encode(name.encode()).decode()},
            {"Verb": "set", "Key": self.layout.marker(name), "Value": ""},
        ]
        with suppress(MaybeApplied):
            answer = await self._client.call("PUT", "/v1/txn", encoded(ops), writes=True)
            if answer.status == 409 and "Permission denied" in answer.body.decode("utf-8", "replace"):
                raise Unauthorized(f"the ACL token may not write {self.layout.prefix}/")
        found = await self._read_identity()
        if found is None:
            raise Unavailable("the store was not named: the answer was lost")
        return found

    async def _prove_writing(self) -> None:
        """Write and delete a key under a session, with all that transactions here are made of."""
        session_id = await self.create_session(self.capabilities.ttl_ms_min)
        key = self.layout.probe(f"{self._rng.getrandbits(64):016x}")
        ops: list[KV] = [
            {"Verb": "get", "Key": self.layout.marker(self.identity)},
            {"Verb": "check-not-exists", "Key": key},
            {"Verb": "lock", "Key": key, "Value": "", "Flags": 1, "Session": session_id},
            {"Verb": "delete", "Key": key},
        ]
        try:
            answer = await self._client.call("PUT", "/v1/txn", encoded(ops), writes=True)
        except MaybeApplied as error:
            raise Unavailable(str(error)) from error
        finally:
            await self.farewell(session_id)
        if answer.status == 200:
            return
        reason = str(fields(answer.body, "Errors"))
        if "Permission denied" in reason:
            raise Unauthorized(f"the ACL token may not write {self.layout.prefix}/: {reason}")
        if "unknown KV verb" in reason:
            raise Unsupported(f"this Consul is too old: {reason}")
        if "exist" in reason:
            raise WrongStore(f"{self.layout.identity} names a store that is not there: {reason}")
        raise Unavailable(f"Consul refused a first transaction: {reason}")
