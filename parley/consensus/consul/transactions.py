"""Our transactions as Consul's, and its answers as ours. No I/O.

Consul looks at every operation of a transaction in order, on the state as the operations before it left it, and lists
all that failed: so the identity comes first, then the checks in the order given, and then what writes.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from parley.consensus.backend import (
    At,
    Capabilities,
    Check,
    Delete,
    Entry,
    Op,
    Presence,
    Put,
    Revision,
    Session,
    violation,
)
from parley.consensus.errors import CoordinationError, SessionLost, Unauthorized, Unavailable, WrongStore

OPS_MAX = 64
"""Operations that Consul takes in a transaction; 128 since 1.14, which nobody knows before connecting."""
_FLAGS_BITS = 53
"""Of the 64 that Flags has: tools that take JSON's numbers for floats see these whole."""
_NO_INDEX = (1 << 64) - 1

KV: TypeAlias = dict[str, Any]


def capabilities(ttl_ms_min: int) -> Capabilities:
    """The limits: of a transaction's 64 operations one asks for the identity, and a put takes two; of its 512 KiB,
    values take four thirds of their size and keys appear twice."""
    return Capabilities(
        name="consul",
        key_bytes_max=512,
        value_bytes_max=320 * 1024,
        txn_ops_max=(OPS_MAX - 1) // 2,
        txn_bytes_max=336 * 1024,
        list_limit_max=100_000,
        ttl_ms_min=ttl_ms_min,
        ttl_ms_max=24 * 3600 * 1000,
        expiry_factor_max=2.0,
        crash_seen_ms_max=None,
    )


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are in Consul's KV store."""

    prefix: str

    @property
    def identity(self) -> str:
        """The key that holds the store's name."""
        return f"{self.prefix}/identity"

    def marker(self, identity: str) -> str:
        """The key that is there as long as the store has this name."""
        return f"{self.prefix}/identity/{identity}"

    def probe(self, name: str) -> str:
        """A key to try writing with."""
        return f"{self.prefix}/probe/{name}"

    def data(self, key: str) -> str:
        """Where one of our keys is, or what the keys below a prefix begin with."""
        return f"{self.prefix}/keys/{key}"

    def key(self, stored: str) -> str:
        """The way back from ``data``."""
        return stored[len(self.prefix) + len("/keys/") :]


@dataclass(frozen=True, slots=True)
class Plan:
    """A transaction for Consul, and for each of its operations what it stands for; ``None`` for the identity."""

    ops: tuple[KV, ...]
    origins: tuple[Check | Op | None, ...]
    writes: bool

    @property
    def body(self) -> bytes:
        """What is sent."""
        return encoded(self.ops)


def plan_txn(layout: Layout, identity: str, checks: Sequence[Check], ops: Sequence[Op], rng: random.Random) -> Plan:
    """A transaction as Consul's."""
    planned: list[tuple[KV, Check | Op | None]] = [({"Verb": "get", "Key": layout.marker(identity)}, None)]
    planned += [(asked, check) for check in checks if (asked := _check(layout, check))]
    for op in ops:
        # A plain set would leave a key bound to the session that it was bound to, and lock would not take it over.
        planned.append(({"Verb": "delete", "Key": layout.data(op.key)}, op))
        if isinstance(op, Put):
            planned.append((_put(layout, op, rng), op))
    return Plan(tuple(op for op, _ in planned), tuple(origin for _, origin in planned), bool(ops))


def plan_read(layout: Layout, identity: str, verb: str, key: str) -> Plan:
    """``get`` of a key (refused with NotFound if it is absent), or ``get-tree`` of a prefix."""
    ops: tuple[KV, ...] = (
        {"Verb": "get", "Key": layout.marker(identity)},
        {"Verb": verb, "Key": layout.data(key)},
    )
    return Plan(ops, (None, Check(key, Presence.PRESENT)), writes=False)


def _check(layout: Layout, check: Check) -> KV | None:
    key = layout.data(check.key)
    match check.expect:
        case Presence.ANY:
            return None
        case Presence.ABSENT:
            return {"Verb": "check-not-exists", "Key": key}
        case Presence.PRESENT:
            return {"Verb": "get", "Key": key}
        case At(revision):
            token = revision.token
            index = token if type(token) is int and 0 < token < _NO_INDEX else _NO_INDEX
            return {"Verb": "check-index", "Key": key, "Index": index}


def _put(layout: Layout, put: Put, rng: random.Random) -> KV:
    op: KV = {
        "Verb": "set",
        "Key": layout.data(put.key),
        "Value": base64.b64encode(put.value).decode("ascii"),
        "Flags": rng.getrandbits(_FLAGS_BITS),
    }
    if put.session is not None:
        op |= {"Verb": "lock", "Session": put.session.id}
    return op


@dataclass(frozen=True, slots=True)
class Refused:
    """A transaction that was not applied: why, and the session that Consul does not know, if that is why."""

    error: CoordinationError
    session: Session | None = None


def refused(plan: Plan, body: bytes) -> Refused:
    """What an answer of 409 to a plan means: the first thing in it that does not hold."""
    failures = [(failure.get("OpIndex", 0), str(failure.get("What", ""))) for failure in fields(body, "Errors")]
    for _, what in failures:
        if "Permission denied" in what or "ACL not found" in what:
            return Refused(Unauthorized(f"Consul refuses the transaction: {what}"))
    if not failures or not 0 <= min(failures)[0] < len(plan.origins):
        return Refused(Unavailable(f"Consul refused the transaction for no reason we know: {body[:300]!r}"))
    number, what = min(failures)
    match plan.origins[number]:
        case None:
            return Refused(WrongStore("the store in Consul is gone, or has become another one"))
        case Check() as check:
            return Refused(_violated(check, absent=what.endswith("doesn't exist")))
        case Put(session=Session() as session) if what.startswith("invalid session"):
            return Refused(SessionLost(f"session {session.id} is over"), session)
        case _:
            return Refused(Unavailable(f"Consul refused the transaction: {what}"))


def _violated(check: Check, *, absent: bool) -> CoordinationError:
    other = Revision(object())  # some revision that is not the expected one
    error = violation(check, None if absent or check.expect is Presence.PRESENT else other)
    assert error is not None
    return error


def results(plan: Plan, body: bytes) -> list[KV]:
    """The entries in an answer of 200, without that of the identity.

    :raises Unauthorized: the identity is not among them: Consul leaves out what the token may not read.
    """
    found = entries(body)
    marker = str(plan.ops[0]["Key"])
    if not found or found[0].get("Key") != marker:
        raise Unauthorized(f"the ACL token may not read {marker.partition('/identity/')[0]}/")
    return found[1:]


def revisions(layout: Layout, ops: Sequence[Op], found: Sequence[KV]) -> tuple[Revision | None, ...]:
    """What a transaction's operations made of their keys."""
    written = {kv["Key"]: kv["ModifyIndex"] for kv in found}  # the last one of a key: its put
    return tuple(None if isinstance(op, Delete) else Revision(written[layout.data(op.key)]) for op in ops)


def entry(layout: Layout, kv: KV) -> Entry:
    """One of Consul's entries as ours."""
    return Entry(layout.key(kv["Key"]), value(kv), Revision(kv["ModifyIndex"]), kv.get("Session") or None)


def value(kv: KV) -> bytes:
    """The value of one of Consul's entries."""
    return base64.b64decode(kv["Value"] or "")


def encoded(ops: Sequence[KV]) -> bytes:
    """Operations as what is sent."""
    return json.dumps([{"KV": op} for op in ops], separators=(",", ":")).encode()


def entries(body: bytes) -> list[KV]:
    """The entries in an answer of 200."""
    return [result["KV"] for result in fields(body, "Results") if isinstance(result.get("KV"), dict)]


def fields(body: bytes, name: str) -> list[dict[str, Any]]:
    """A list of objects in an answer.

    :raises Unavailable: this is not an answer of Consul's.
    """
    try:
        found = json.loads(body)[name] or []
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable(f"Consul's answer makes no sense: {body[:100]!r}") from error
    return [each for each in found if isinstance(each, dict)]
