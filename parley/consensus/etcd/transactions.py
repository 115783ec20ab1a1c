"""Transactions of ours as etcd's: the identity compared first, then the checks; refused, it tells the state it saw."""

from __future__ import annotations

from collections.abc import Sequence

from parley.consensus.backend import At, Check, Delete, Op, Presence, Put, Revision, TxnResult, violation
from parley.consensus.errors import CoordinationError, SessionLost, WrongStore
from parley.consensus.etcd import etcd_pb2 as pb
from parley.consensus.etcd.key_layout import Keyspace, lease_of

_REVISION_MAX = 2**63 - 1


def read(keyspace: Keyspace, identity: str, *ranges: pb.RangeRequest, stale: bool = False) -> pb.TxnRequest:
    """A transaction that answers these ranges, if the store is the one expected."""
    return pb.TxnRequest(
        compare=[_is_this_store(keyspace, identity)],
        success=[pb.RequestOp(request_range=each) for each in ranges],
        failure=[_identity(keyspace, stale)],
    )


def write(keyspace: Keyspace, identity: str, checks: Sequence[Check], ops: Sequence[Op]) -> pb.TxnRequest:
    """A transaction that applies the operations if the checks hold.

    :raises SessionLost: a session is none of etcd's.
    """
    conditions = [check for check in checks if check.expect is not Presence.ANY]
    # The range in the other branch also makes etcd take a transaction without operations for one that has to be
    # linearizable: of one without any range it thinks otherwise.
    return pb.TxnRequest(
        compare=[_is_this_store(keyspace, identity), *(_compare(keyspace, check) for check in conditions)],
        success=[_operation(keyspace, op) for op in ops],
        failure=[
            _identity(keyspace),
            *(
                pb.RequestOp(request_range=pb.RangeRequest(key=keyspace.key(check.key), keys_only=True))
                for check in conditions
            ),
        ],
    )


def result(ops: Sequence[Op], answer: pb.TxnResponse) -> TxnResult:
    """What an applied transaction gave."""
    revision = Revision(answer.header.revision)  # that of every key it wrote
    return TxnResult(tuple(revision if isinstance(op, Put) else None for op in ops))


def refusal(checks: Sequence[Check], identity: str, answer: pb.TxnResponse) -> CoordinationError:
    """Why a transaction was refused, as of the moment it was."""
    found = [each.response_range.kvs for each in answer.responses]
    if not found[0] or found[0][0].value != identity.encode("ascii"):
        return wrong_store(identity, found[0][0].value if found[0] else None)
    conditions = [check for check in checks if check.expect is not Presence.ANY]
    for check, kvs in zip(conditions, found[1:], strict=True):
        if error := violation(check, Revision(kvs[0].mod_revision) if kvs else None):
            return error
    raise AssertionError(f"etcd refused a transaction whose checks hold: {answer}")


def wrong_store(expected: str, found: bytes | None) -> WrongStore:
    """The store is another one than expected, or none."""
    name = found.decode("ascii", "replace") if found is not None else None
    what = "has no store (any more)" if name is None else f"is the store {name}"
    return WrongStore(f"expected the store {expected}; this etcd {what}", found=name)


def _is_this_store(keyspace: Keyspace, identity: str) -> pb.Compare:
    return pb.Compare(
        key=keyspace.identity, target=pb.Compare.VALUE, result=pb.Compare.EQUAL, value=identity.encode("ascii")
    )


def _identity(keyspace: Keyspace, stale: bool = False) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=keyspace.identity, serializable=stale))


def _compare(keyspace: Keyspace, check: Check) -> pb.Compare:
    key = keyspace.key(check.key)
    match check.expect:
        case At(revision):
            token = revision.token
            if type(token) is int and 0 < token <= _REVISION_MAX:
                return pb.Compare(key=key, target=pb.Compare.MOD, result=pb.Compare.EQUAL, mod_revision=token)
            # Another store's revision: no key is at it. (Zero would be what etcd says of an absent key.)
            return pb.Compare(key=key, target=pb.Compare.VERSION, result=pb.Compare.LESS, version=0)
        case Presence.ABSENT:
            return pb.Compare(key=key, target=pb.Compare.VERSION, result=pb.Compare.EQUAL, version=0)
        case _:
            return pb.Compare(key=key, target=pb.Compare.VERSION, result=pb.Compare.GREATER, version=0)


def _operation(keyspace: Keyspace, op: Op) -> pb.RequestOp:
    if isinstance(op, Delete):
        return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=keyspace.key(op.key)))
    lease = 0
    if op.session is not None:
        op.session.require()
        lease = lease_of(op.session.id)
        if not lease:
            raise SessionLost(f"session {op.session.id} is not one of etcd's")
    return pb.RequestOp(request_put=pb.PutRequest(key=keyspace.key(op.key), value=op.value, lease=lease))
