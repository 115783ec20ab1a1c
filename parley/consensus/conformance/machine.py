"""A Hypothesis state machine that makes random calls, and compares the store's results with the model's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from parley.consensus.backend import (
    ABSENT,
    ANY,
    PRESENT,
    At,
    Backend,
    Check,
    Delete,
    Expectation,
    Op,
    Put,
    Revision,
    Session,
    SessionState,
    TxnResult,
    Watch,
)
from parley.consensus.conformance.harness import Harness
from parley.consensus.conformance.lab import LONG_TTL_MS, Broken, equal, require
from parley.consensus.conformance.model import Follower, Model
from parley.consensus.errors import Closed, CoordinationError, Fenced, PreconditionFailed

SETTINGS = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
_T = TypeVar("_T")
_LEAVES = ("a/b", "a/c", "a0", "b/~", "b/~0/x", "~")
_KEYS = ("a", "b/~0", *_LEAVES)
_PREFIXES = ("", "a", "a/", "b/~", "b/~0/", "none")

_keys = st.sampled_from(_KEYS)
_leaves = st.sampled_from(_LEAVES)
_prefixes = st.sampled_from(_PREFIXES)
_values = st.sampled_from((b"", b"\xff", b"same")) | st.binary(max_size=20)
_expectations = st.sampled_from(("any", "absent", "present", "now", "now", "before", "elsewhere"))
_numbers = st.integers(min_value=0, max_value=5)
_checks = st.lists(st.tuples(_keys, _expectations, st.booleans()), max_size=3)
_ops = st.lists(st.tuples(_leaves, st.none() | _values, st.none() | _numbers), max_size=4, unique_by=lambda op: op[0])


class Agreement(RuleBasedStateMachine):
    """Makes calls with two clients, one call at a time. A subclass sets the harness."""

    harness: Harness

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model = Model()
        self.clients: list[Backend] = []
        self.sessions: list[tuple[Backend, Session]] = []
        self.watches: list[tuple[Backend, Watch, Follower]] = []

    def run(self, call: Coroutine[Any, Any, _T]) -> _T:
        """Run a call to completion, and return its result. Raises TimeoutError after a minute."""

        async def in_time() -> _T:
            return await asyncio.wait_for(call, 60)

        return self.runner.run(in_time())

    @initialize()
    def start(self) -> None:
        self.run(self.harness.start())
        self.clients = [self.run(self._opened()) for _ in range(2)]

    def teardown(self) -> None:
        try:
            if self.clients:
                self.settle()
        finally:
            try:
                for client in self.clients:
                    self.run(client.close())
                self.run(self.harness.stop())
            finally:
                self.runner.close()

    async def _opened(self) -> Backend:
        client = self.harness.client()
        await client.open()
        return client

    @rule(client_number=_numbers, key=_keys, value=_values, expect=_expectations)
    def put(self, client_number: int, key: str, value: bytes, expect: str) -> None:
        check = Check(key, self._expectation(key, expect))
        client = self._client(client_number)

        async def call() -> Sequence[Revision | None]:
            return [await client.put(key, value, expect=check.expect)]

        self._write([check], [Put(key, value)], call())

    @precondition(lambda self: self.sessions)
    @rule(keys=st.lists(_leaves, min_size=1, max_size=4, unique=True), value=_values, session=_numbers)
    def put_bound(self, keys: list[str], value: bytes, session: int) -> None:
        client, bound = self._session(session) or self.sessions[0]
        ops = [Put(key, value, bound) for key in keys]

        async def call() -> Sequence[Revision | None]:
            if len(keys) == 1:
                return [await client.put(keys[0], value, session=bound)]
            return (await client.txn([], ops)).revisions

        self._write([], ops, call())

    @rule(client_number=_numbers, key=_keys, expect=_expectations.filter(lambda expect: expect != "absent"))
    def delete(self, client_number: int, key: str, expect: str) -> None:
        check = Check(key, self._expectation(key, expect))
        client = self._client(client_number)
        existed = key in self.model.entries

        async def call() -> Sequence[Revision | None]:
            equal(await client.delete(key, expect=check.expect), existed, f"deleting {key}")
            return [None]

        self._write([check], [Delete(key)], call())

    @rule(client_number=_numbers, checks=_checks, ops=_ops)
    def txn(
        self, client_number: int, checks: list[tuple[str, str, bool]], ops: list[tuple[str, bytes | None, int | None]]
    ) -> None:
        conditions = [Check(key, self._expectation(key, expect), fences) for key, expect, fences in checks]
        client, operations = self._client(client_number), list[Op]()
        for key, value, number in ops:
            if value is None:
                operations.append(Delete(key))
                continue
            found = self._session(number) if number is not None else None
            bound = found[1] if found and found[0] is client else None
            operations.append(Put(key, value, bound))

        async def call() -> Sequence[Revision | None]:
            return (await client.txn(conditions, operations)).revisions

        self._write(conditions, operations, call())

    @rule(client_number=_numbers, key=_keys)
    def get(self, client_number: int, key: str) -> None:
        equal(self.run(self._client(client_number).get(key)), self.model.entries.get(key), f"the entry of {key}")

    @rule(
        client_number=_numbers, prefix=_prefixes, limit=st.integers(min_value=1, max_value=9), after=st.none() | _keys
    )
    def list(self, client_number: int, prefix: str, limit: int, after: str | None) -> None:
        page = self.run(self._client(client_number).list(prefix, limit=limit, after=after))
        expected = [entry for key, entry in self.model.below(prefix).items() if after is None or key > after]
        equal(list(page.entries), expected[:limit], f"{limit} keys below {prefix!r} after {after!r}")
        equal(page.next_after, expected[limit - 1].key if len(expected) > limit else None, "next_after")

    @precondition(lambda self: len(self.sessions) < 6)
    @rule(client_number=_numbers)
    def open_session(self, client_number: int) -> None:
        client = self._client(client_number)
        session = self.run(client.open_session(LONG_TTL_MS))
        require(session.id not in {other.id for _, other in self.sessions}, f"session {session.id} came twice")
        self.sessions.append((client, session))
        self.model.sessions.add(session.id)

    @precondition(lambda self: self.sessions)
    @rule(number=_numbers)
    def close_session(self, number: int) -> None:
        _, session = self._session(number) or self.sessions[0]
        self.run(session.close())
        equal(session.state, SessionState.LOST, "a closed session")
        self.model.end(session.id)

    @rule(client_number=_numbers, sure=_numbers)
    def change_client(self, client_number: int, sure: int) -> None:
        """Sometimes close a client, which ends its sessions and watches, and replace it with a new one."""
        if sure:
            return
        client = self._client(client_number)
        self.run(client.close())
        for owner, session in self.sessions:
            if owner is client:
                equal(session.state, SessionState.LOST, "a session of a closed client")
                self.model.end(session.id)
        self.sessions = [held for held in self.sessions if held[0] is not client]
        for _, watch, _ in [watched for watched in self.watches if watched[0] is client]:
            self._raises(Closed, watch)
        self.watches = [watched for watched in self.watches if watched[0] is not client]
        self.clients[self.clients.index(client)] = self.run(self._opened())

    @precondition(lambda self: len(self.watches) < 4)
    @rule(client_number=_numbers, prefix=_prefixes, begin=st.sampled_from((True, True, False)))
    def watch(self, client_number: int, prefix: str, begin: bool) -> None:
        client = self._client(client_number)
        watch = self.run(self._watch(client, prefix))
        follower = Follower(self.model, prefix)
        self.watches.append((client, watch, follower))
        if begin:
            follower.take(self.run(self._next(watch)))
            require(follower.up_to_date(), f"a Snapshot of {prefix!r} shows {follower.entries}")

    @rule()
    def settle(self) -> None:
        """Check that the store contains what the model contains, and that every watch eventually shows it."""
        page = self.run(self._client(0).list("", limit=1000))
        equal(list(page.entries), list(self.model.entries.values()), "all there is")
        for client, watch, follower in self.watches:
            if below := [key for key in _LEAVES if key.startswith(follower.prefix)]:  # after all pending events
                self._put_any(client, below[0])
            while not follower.up_to_date():
                try:
                    follower.take(self.run(self._next(watch)))
                except TimeoutError:
                    raise Broken(f"a watch of {follower.prefix!r} never showed what is stored") from None

    @precondition(lambda self: self.watches)
    @rule(number=_numbers)
    def close_watch(self, number: int) -> None:
        _, watch, _ = self.watches.pop(number % len(self.watches))
        self.run(watch.close())
        self._raises(Closed, watch)

    def _put_any(self, client: Backend, key: str) -> None:
        async def call() -> Sequence[Revision | None]:
            return [await client.put(key, b"")]

        self._write([], [Put(key, b"")], call())

    def _write(
        self, checks: Sequence[Check], ops: Sequence[Op], call: Coroutine[Any, Any, Sequence[Revision | None]]
    ) -> None:
        errors = self.model.errors(checks, ops)
        try:
            revisions = self.run(call)
        except CoordinationError as error:
            expected = [(type(each), getattr(each, "key", None)) for each in errors]
            found = (type(error), error.key if isinstance(error, PreconditionFailed | Fenced) else None)
            require(found in expected, f"{checks} {ops}: expected {errors or 'success'}, got {error!r}")
            return
        require(not errors, f"{checks} {ops}: expected {errors}, but it succeeded")
        self.model.apply(ops, TxnResult(tuple(revisions)))

    def _raises(self, kind: type[CoordinationError], watch: Watch) -> None:
        try:
            while True:
                self.run(self._next(watch))
        except kind:
            pass

    async def _watch(self, client: Backend, prefix: str) -> Watch:
        return client.watch(prefix)

    async def _next(self, watch: Watch) -> Any:
        return await asyncio.wait_for(anext(watch), 20 * self.harness.patience)

    def _client(self, client_number: int) -> Backend:
        return self.clients[client_number % len(self.clients)]

    def _session(self, number: int) -> tuple[Backend, Session] | None:
        return self.sessions[number % len(self.sessions)] if self.sessions else None

    def _expectation(self, key: str, wanted: str) -> Expectation:
        present = self.model.entries.get(key)
        past = [entry.revision for entry in self.model.past.get(key, ()) if entry and entry != present]
        match wanted:
            case "absent":
                return ABSENT
            case "present":
                return PRESENT
            case "now" if present:
                return At(present.revision)
            case "before" if past:
                return At(past[-1])
            case "elsewhere":
                return At(Revision(("elsewhere", 1)))
            case _:
                return ANY


def explore(harness: Harness) -> None:
    """Try many sequences of calls, which are the same in every run.

    Raises Broken, and prints the shortest sequence found, if store and model disagree.
    """

    class OnThisStore(Agreement):
        pass

    OnThisStore.harness = harness
    run_state_machine_as_test(OnThisStore, settings=SETTINGS)
