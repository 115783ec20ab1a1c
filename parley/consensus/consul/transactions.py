"""Store transactions as Consul transactions, and Consul's responses as results. No I/O.

Consul carries out the operations of a transaction in order, each on the state that the earlier ones left, and lists all
operations that failed. So the identity comes first, then the checks in the order given, and then the writes.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
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
from parley.consensus.consul.key_layout import KeyLayout
from parley.consensus.errors import CoordinationError, SessionLost, Unauthorized, Unavailable, WrongStore
from parley.light_dataclasses import dataclass

OPS_MAX = 64
"""The maximum number of operations that Consul allows in a transaction. Consul 1.14 and later allow 128."""
_FLAGS_BITS = 53
"""The number of bits of Flags that are used, out of 64. Tools that read JSON numbers as floats preserve that many."""
_NO_INDEX = (1 << 64) - 1

KV: TypeAlias = dict[str, Any]


def capabilities(ttl_ms_min: int) -> Capabilities:
    """Return the limits of a store in Consul.

    Of the 64 operations in a Consul transaction, one checks the identity, and each put needs two. In its 512 KiB,
    values take four thirds of their size (base64), and keys appear twice.
    """
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
class Plan:
    """A Consul transaction. ``origins`` contains the check or operation behind each of ``ops``; None means the check of
    the identity."""

    ops: tuple[KV, ...]
    origins: tuple[Check | Op | None, ...]
    writes: bool

    @property
    def body(self) -> bytes:
        """The body of the request."""
        return encoded(self.ops)


def plan_txn(layout: KeyLayout, identity: str, checks: Sequence[Check], ops: Sequence[Op], rng: random.Random) -> Plan:
    """Return the Consul transaction for a store transaction."""
    planned: list[tuple[KV, Check | Op | None]] = [({"Verb": "get", "Key": layout.marker(identity)}, None)]
    planned += [(op, check) for check in checks if (op := _check(layout, check))]
    for each in ops:
        # ``set`` alone would leave the key bound to its old session, and ``lock`` would not take it over from there.
        planned.append(({"Verb": "delete", "Key": layout.data(each.key)}, each))
        if isinstance(each, Put):
            planned.append((_put(layout, each, rng), each))
    return Plan(tuple(op for op, _ in planned), tuple(origin for _, origin in planned), bool(ops))


def plan_read(layout: KeyLayout, identity: str, verb: str, key: str) -> Plan:
    """Return the Consul transaction for a read.

    ``verb`` is ``get`` for a key, which Consul rejects (NotFound) if the key is absent, or ``get-tree`` for a prefix.
    """
    ops: tuple[KV, ...] = (
        {"Verb": "get", "Key": layout.marker(identity)},
        {"Verb": verb, "Key": layout.data(key)},
    )
    return Plan(ops, (None, Check(key, Presence.PRESENT)), writes=False)


def _check(layout: KeyLayout, check: Check) -> KV | None:
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


def _put(layout: KeyLayout, put: Put, rng: random.Random) -> KV:
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
    """The reason why a transaction was rejected. ``session`` is set if Consul does not know that session."""

    error: CoordinationError
    session: Session | None = None


def refused(plan: Plan, body: bytes) -> Refused:
    """Return the reason for a 409 response: the first operation of the plan that failed."""
    failures = [(failure.get("OpIndex", 0), str(failure.get("What", ""))) for failure in objects(body, "Errors")]
    for _, what in failures:
        if "Permission denied" in what or "ACL not found" in what:
            return Refused(Unauthorized(f"Consul refuses the transaction: {what}"))
    if not failures or not 0 <= min(failures)[0] < len(plan.origins):
        return Refused(Unavailable(f"Consul refused the transaction for an unknown reason: {body[:300]!r}"))
    number, what = min(failures)
    match plan.origins[number]:
        case None:
            return Refused(WrongStore("the store in Consul was deleted, or replaced by another one"))
        case Check() as check:
            return Refused(_violated(check, absent=what.endswith("doesn't exist")))
        case Put(session=Session() as session) if what.startswith("invalid session"):
            return Refused(SessionLost(f"session {session.id} has ended"), session)
        case _:
            return Refused(Unavailable(f"Consul refused the transaction: {what}"))


def _violated(check: Check, *, absent: bool) -> CoordinationError:
    other = Revision(object())  # any revision other than the expected one
    error = violation(check, None if absent or check.expect is Presence.PRESENT else other)
    assert error is not None
    return error


def results(plan: Plan, body: bytes) -> list[KV]:
    """Return the entries in a 200 response, without the entry of the identity.

    Raises Unauthorized if the identity is missing, because Consul omits what the token may not read.
    """
    found = entries(body)
    marker = str(plan.ops[0]["Key"])
    if not found or found[0].get("Key") != marker:
        raise Unauthorized(f"the ACL token does not permit reading below {marker.partition('/identity/')[0]}/")
    return found[1:]


def revisions(layout: KeyLayout, ops: Sequence[Op], found: Sequence[KV]) -> tuple[Revision | None, ...]:
    """Return the new revision of each operation's key, from the entries in the response."""
    written = {kv["Key"]: kv["ModifyIndex"] for kv in found}  # the last entry of a key comes from its put
    return tuple(None if isinstance(op, Delete) else Revision(written[layout.data(op.key)]) for op in ops)


def entry(layout: KeyLayout, kv: KV) -> Entry:
    """Convert an entry of Consul's KV store to an entry of the store."""
    return Entry(layout.key(kv["Key"]), value(kv), Revision(kv["ModifyIndex"]), kv.get("Session") or None)


def value(kv: KV) -> bytes:
    """Return the value of a Consul entry."""
    return base64.b64decode(kv["Value"] or "")


def encoded(ops: Sequence[KV]) -> bytes:
    """Return the body of a request with these operations."""
    return json.dumps([{"KV": op} for op in ops], separators=(",", ":")).encode()


def entries(body: bytes) -> list[KV]:
    """Return the entries in a 200 response. Raises Unavailable if the response is malformed."""
    return [result["KV"] for result in objects(body, "Results") if isinstance(result.get("KV"), dict)]


def objects(body: bytes, name: str) -> list[dict[str, Any]]:
    """Return the JSON objects in the field ``name`` of a response. Raises Unavailable if the response is malformed,
    probably because it is not from Consul."""
    try:
        found = json.loads(body)[name] or []
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable(f"this is not a response from Consul. Is the address correct? {body[:100]!r}") from error
    return [each for each in found if isinstance(each, dict)]
