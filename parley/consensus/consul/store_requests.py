"""The requests that a store sends to Consul: transactions, sessions, blocking queries."""

from __future__ import annotations

import json
import random
import re
from contextlib import suppress
from urllib.parse import quote

from parley.consensus.backend import Capabilities, Read, Session, WatchCount
from parley.consensus.consul.address import Address
from parley.consensus.consul.http_client import TIMEOUT_S, Client, Response, Untrusted
from parley.consensus.consul.identity import ConsulIdentity
from parley.consensus.consul.key_layout import KeyLayout
from parley.consensus.consul.transactions import KV, Plan, capabilities, encoded, objects, plan_txn, refused, results
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
from parley.consensus.store_identity import open_identity

_BEST_EFFORT_S = 3.0
# Matches the part of a prefix that a path can contain. Consul redirects paths with empty segments, ``.`` or ``..``.
_ALLOWED_IN_PATH = re.compile(r"(?:(?!\.{1,2}/)[!-.0-~]+/)*(?:(?!\.{1,2}\Z)[!-.0-~]+\Z)?")


class UnknownSession(SessionLost):
    """Consul does not know the session to which a put is bound."""

    def __init__(self, error: CoordinationError, session: Session) -> None:
        super().__init__(*error.args)
        self.session = session


class Store:
    """The store at an address. Call ``open`` first. ``identity`` is "" until then."""

    def __init__(self, address: Address, rng: random.Random) -> None:
        self.layout = KeyLayout(address.prefix)
        self.identity = ""
        self.capabilities: Capabilities = capabilities(address.ttl_ms_min)
        self._rng = rng
        self._client = Client(address)

    async def open(self, expect_identity: str | None) -> None:
        """Connect, find or create the store, and prove that keys and sessions can be written.

        Raises the errors of ``Backend.open``, after closing the connections.
        """
        await self._client.open()
        try:
            storage = ConsulIdentity(self._client, self.layout)
            self.identity = await open_identity(storage, expect_identity, self._rng)
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
        """Run a transaction. Returns the entries it read and wrote, in order, without the identity.

        Raises UnknownSession if a put is bound to a session that has ended, and the errors of ``Backend.txn``.
        """
        # A transaction that writes goes through the leader in any case.
        query = "" if plan.writes else "?stale" if read is Read.STALE else "?consistent"
        response = await self._client.call("PUT", f"/v1/txn{query}", plan.body, writes=plan.writes)
        if response.status == 200:
            return results(plan, response.body)
        reason = refused(plan, response.body)
        if reason.session is not None:
            raise UnknownSession(reason.error, reason.session)
        raise reason.error

    async def watch_count(self) -> WatchCount:
        """Return the number of blocking queries on this Consul agent, from the agent's metrics, which are up to 20 s
        old.

        If the metrics do not contain the number, it is None and ``source`` gives the reason.
        """
        try:
            response = await self._client.call("GET", "/v1/agent/metrics", writes=False)
            gauges = json.loads(response.body)["Gauges"]
        except (CoordinationError, ValueError, KeyError) as error:
            return WatchCount(None, f"the agent does not report its metrics (the token needs agent read): {error}")
        found = [each["Value"] for each in gauges if each["Name"].endswith(".rpc.queries_blocking")]
        if not found:
            return WatchCount(None, "the agent is not a server, or no blocking query began in the last 10 s")
        return WatchCount(round(found[-1]), "blocking queries in Consul's metrics, of one server; up to 20 s old")

    async def verify(self) -> None:
        """Raise WrongStore if the store at this address is no longer the one that was opened."""
        await self.run(plan_txn(self.layout, self.identity, [], [], self._rng))

    async def wait_for_change(self, prefix: str, index: int, wait_s: float) -> Response:
        """Send a blocking query for the keys below a prefix of the store.

        Consul responds when something may have changed since ``index`` (immediately if it is 0), or after about
        ``wait_s`` seconds. Raises the errors of ``Client.query``.
        """
        allowed = _ALLOWED_IN_PATH.match(prefix)
        path = quote(self.layout.data(allowed[0] if allowed else ""), safe="/")
        return await self._client.query(f"/v1/kv/{path}?keys&separator=/&consistent&index={index}", wait_s)

    # --- Sessions ---

    async def create_session(self, ttl_ms: int) -> str:
        """Create a session without health checks, whose keys are deleted with it. Returns its id.

        Raises Unavailable even if only the response was lost: a session that no client knows has no keys, and expires.
        Raises Unsupported if Consul rejects the TTL.
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
            response = await self._client.call("PUT", "/v1/session/create", json.dumps(wanted).encode(), writes=True)
        except MaybeApplied as error:
            if "Invalid Session TTL" in str(error):
                raise Unsupported(f"Consul refuses a TTL of {ttl_ms} ms: {error}") from error
            raise Unavailable(str(error)) from error
        with suppress(ValueError, KeyError, TypeError):
            return str(json.loads(response.body)["ID"])
        raise Unavailable(f"Consul created no session: {response.body[:300]!r}")

    async def renew_session(self, session_id: str, timeout_s: float) -> bool:
        """Renew a session. Returns False if Consul does not know it. Raises Unavailable if the outcome is unknown."""
        path = f"/v1/session/renew/{session_id}"
        if (await self._client.call("PUT", path, b"", writes=False, timeout_s=timeout_s)).status == 200:
            return True
        # A leader that has just been elected may not have reached the end of its log. Until it has, it does not respond
        # to a consistent read.
        path = f"/v1/session/info/{session_id}?consistent"
        found = await self._client.call("GET", path, writes=False, timeout_s=timeout_s)
        if f'"{session_id}"'.encode() in found.body:
            raise Unavailable("the leader did not know the session a moment ago, and does now")
        return False

    async def destroy_session(self, session_id: str, timeout_s: float = TIMEOUT_S) -> None:
        """End a session, and delete its keys. Does nothing if the session does not exist."""
        # Ending a session twice does no harm, so the request may be tried at each agent.
        await self._client.call("PUT", f"/v1/session/destroy/{session_id}", b"", writes=False, timeout_s=timeout_s)

    async def try_to_destroy_session(self, session_id: str) -> None:
        """Call ``destroy_session`` with a short timeout, and ignore failure: the session then expires."""
        with suppress(CoordinationError):
            await self.destroy_session(session_id, _BEST_EFFORT_S)

    async def _prove_writing(self) -> None:
        """Write and delete a key under a session, with every kind of operation that transactions use."""
        session_id = await self.create_session(self.capabilities.ttl_ms_min)
        key = self.layout.probe(f"{self._rng.getrandbits(64):016x}")
        ops: list[KV] = [
            {"Verb": "get", "Key": self.layout.marker(self.identity)},
            {"Verb": "check-not-exists", "Key": key},
            {"Verb": "lock", "Key": key, "Value": "", "Flags": 1, "Session": session_id},
            {"Verb": "delete", "Key": key},
        ]
        try:
            response = await self._client.call("PUT", "/v1/txn", encoded(ops), writes=True)
        except MaybeApplied as error:
            raise Unavailable(str(error)) from error
        finally:
            await self.try_to_destroy_session(session_id)
        if response.status == 200:
            return
        reason = str(objects(response.body, "Errors"))
        if "Permission denied" in reason:
            raise Unauthorized(f"the ACL token does not permit writing below {self.layout.prefix}/: {reason}")
        if "unknown KV verb" in reason:
            raise Unsupported(f"this Consul is too old: {reason}")
        if "exist" in reason:
            raise WrongStore(f"{self.layout.identity} has the identity of a store that does not exist: {reason}")
        raise Unavailable(f"Consul refused a trial transaction: {reason}")
