"""Store transactions as etcd transactions, which compare the identity first, then the checks.

If a comparison fails, the transaction reads the compared keys instead, so that the error describes the state that
caused the rejection.
"""

from __future__ import annotations

from collections.abc import Sequence

from parley.consensus.backend import At, Check, Delete, Op, Presence, Put, Revision, TxnResult, violation
from parley.consensus.errors import CoordinationError, SessionLost
from parley.consensus.etcd import etcd_pb2 as pb
from parley.consensus.etcd.key_layout import KeyLayout, lease_of
from parley.consensus.store_identity import wrong_store

_REVISION_MAX = 2**63 - 1


def read(layout: KeyLayout, identity: str, *ranges: pb.RangeRequest, stale: bool = False) -> pb.TxnRequest:
    """Return a transaction that reads these ranges if the store has this identity."""
    return pb.TxnRequest(
        compare=[_is_this_store(layout, identity)],
        success=[pb.RequestOp(request_range=each) for each in ranges],
        failure=[_identity(layout, stale)],
    )


def write(layout: KeyLayout, identity: str, checks: Sequence[Check], ops: Sequence[Op]) -> pb.TxnRequest:
    """Return a transaction that applies the operations if the checks hold.

    Raises SessionLost if a put is bound to a session that is LOST, or that is not an etcd lease.
    """
    conditions = [check for check in checks if check.expect is not Presence.ANY]
    # The range in the other branch also makes etcd treat a transaction without operations as linearizable. Without any
    # range it would not.
    return pb.TxnRequest(
        compare=[_is_this_store(layout, identity), *(_compare(layout, check) for check in conditions)],
        success=[_operation(layout, op) for op in ops],
        failure=[
            _identity(layout),
            *(
                pb.RequestOp(request_range=pb.RangeRequest(key=layout.key(check.key), keys_only=True))
                for check in conditions
            ),
        ],
    )


def result(ops: Sequence[Op], response: pb.TxnResponse) -> TxnResult:
    """Return the result of an applied transaction."""
    revision = Revision(response.header.revision)  # all keys that the transaction wrote have this revision
    return TxnResult(tuple(revision if isinstance(op, Put) else None for op in ops))


def refusal(layout: KeyLayout, checks: Sequence[Check], identity: str, response: pb.TxnResponse) -> CoordinationError:
    """Return the error for a rejected transaction: WrongStore, or the error of the first check that did not hold."""
    found = [each.response_range.kvs for each in response.responses]
    if not found[0] or found[0][0].value != identity.encode("ascii"):
        name = found[0][0].value.decode("ascii", "replace") if found[0] else None
        return wrong_store(name, identity, layout.place)
    conditions = [check for check in checks if check.expect is not Presence.ANY]
    for check, kvs in zip(conditions, found[1:], strict=True):
        if error := violation(check, Revision(kvs[0].mod_revision) if kvs else None):
            return error
    raise AssertionError(f"etcd refused a transaction whose checks hold: {response}")


def _is_this_store(layout: KeyLayout, identity: str) -> pb.Compare:
    return pb.Compare(
        key=layout.identity, target=pb.Compare.VALUE, result=pb.Compare.EQUAL, value=identity.encode("ascii")
    )


def _identity(layout: KeyLayout, stale: bool = False) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=layout.identity, serializable=stale))


def _compare(layout: KeyLayout, check: Check) -> pb.Compare:
    key = layout.key(check.key)
    match check.expect:
        case At(revision):
            token = revision.token
            if type(token) is int and 0 < token <= _REVISION_MAX:
                return pb.Compare(key=key, target=pb.Compare.MOD, result=pb.Compare.EQUAL, mod_revision=token)
            # A revision of another store: this comparison never holds. (Zero would match an absent key.)
            return pb.Compare(key=key, target=pb.Compare.VERSION, result=pb.Compare.LESS, version=0)
        case Presence.ABSENT:
            return pb.Compare(key=key, target=pb.Compare.VERSION, result=pb.Compare.EQUAL, version=0)
        case _:
            return pb.Compare(key=key, target=pb.Compare.VERSION, result=pb.Compare.GREATER, version=0)


def _operation(layout: KeyLayout, op: Op) -> pb.RequestOp:
    if isinstance(op, Delete):
        return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=layout.key(op.key)))
    lease = 0
    if op.session is not None:
        op.session.require()
        lease = lease_of(op.session.id)
        if not lease:
            raise SessionLost(f"session {op.session.id} is not an etcd lease")
    return pb.RequestOp(request_put=pb.PutRequest(key=layout.key(op.key), value=op.value, lease=lease))
