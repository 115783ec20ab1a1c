"""Writes whose outcome is determined even after a lost response (``MaybeApplied``).

Each value is stored in an envelope: a line of text, then the value. The line contains the nonce of the write and, if
the writer knew the value that it replaced, the nonces of up to fifteen earlier writes::

    1 5f0c3a9d2b7e4410 09ab...          <- format, newest nonce first
    {"any": "value"}

A put that expects ANY may be applied twice, the second time over another client's value. If several clients write a
key, use an expectation. See docs/coordination.md, "Lost responses".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence

from parley.consensus.backend import Backend, Check, Delete, Entry, Op, Put, Revision, TxnResult
from parley.consensus.errors import BadConfig, MaybeApplied, PreconditionFailed, Retriable, Unavailable
from parley.light_dataclasses import dataclass

_FORMAT = b"1"
_NONCES_MAX = 16
_HEADER_BYTES_MAX = len(_FORMAT) + _NONCES_MAX * 17

Nonces = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """The content of an envelope: a value, and the nonces of the writes that led to it."""

    value: bytes
    nonces: Nonces


def wrap(value: bytes, nonces: Nonces) -> bytes:
    """Return a value in an envelope with the latest of these nonces, which are ordered newest first."""
    return b"%s %s\n%s" % (_FORMAT, " ".join(nonces[:_NONCES_MAX]).encode("ascii"), value)


def unwrap(entry: Entry) -> Unwrapped:
    """Return the content of a stored value's envelope. Raises BadConfig if the envelope is damaged or
    missing, for example because another program wrote the value."""
    header, newline, value = entry.value.partition(b"\n")
    form, *nonces = header.split(b" ")
    if not newline or form != _FORMAT or len(header) > _HEADER_BYTES_MAX:
        raise BadConfig(
            f"the value of {entry.key} is not in Parley's format; it is damaged, or the address refers to the keys of "
            "another program"
        )
    return Unwrapped(value, tuple(nonce.decode("ascii", "replace") for nonce in nonces))


class Writer:
    """Commits transactions, and settles those with an unknown outcome.

    :param rng: the source of nonces and of the jitter between attempts.
    :param settle_s: how long to try to settle a transaction before raising ``MaybeApplied``, in seconds.
    """

    def __init__(self, backend: Backend, rng: random.Random | None = None, settle_s: float = 30.0) -> None:
        self.backend = backend
        self._rng = rng or random.Random()
        self._settle_s = settle_s

    async def commit(
        self, checks: Sequence[Check], ops: Sequence[Op], *, replaced: Mapping[str, Nonces] | None = None
    ) -> TxnResult:
        """Apply a transaction. Puts each value into its envelope.

        :param replaced: for each key whose current value the checks guarantee, the nonces of that value.

        Raises the errors of ``Backend.txn``. MaybeApplied means that the outcome is still unknown after ``settle_s``:
        read the keys and decide.
        """
        nonce = f"{self._rng.getrandbits(64):016x}"
        wrapped = [_wrapped(op, (nonce, *(replaced or {}).get(op.key, ()))) for op in ops]
        try:
            return await self.backend.txn(checks, wrapped)
        except MaybeApplied as error:
            return await self._settle(checks, wrapped, nonce, replaced or {}, error)

    async def pause(self, attempt: int) -> None:
        """Wait for a random time before the next attempt: at most 1 ms if ``attempt`` is 0, twice as long for each
        later attempt, but never longer than 0.25 s."""
        await asyncio.sleep(self._rng.random() * min(0.001 * 2**attempt, 0.25))

    async def _settle(
        self,
        checks: Sequence[Check],
        ops: Sequence[Op],
        nonce: str,
        replaced: Mapping[str, Nonces],
        first_error: MaybeApplied,
    ) -> TxnResult:
        deadline = asyncio.get_running_loop().time() + self._settle_s
        attempt = 0
        while asyncio.get_running_loop().time() < deadline:
            try:
                if result := await self._outcome(ops, nonce):
                    return result
                return await self.backend.txn(checks, ops)
            except PreconditionFailed as error:
                try:
                    if result := await self._outcome(ops, nonce):
                        return result
                    if await self._never_applied(replaced):
                        raise
                except Unavailable:
                    await self.pause(attempt)
                    attempt += 1
                    continue
                raise MaybeApplied(
                    f"the response was lost, and other clients have written since: {error}"
                ) from first_error
            except Retriable:
                await self.pause(attempt)
                attempt += 1
        raise MaybeApplied(f"not settled within {self._settle_s} s: {first_error}") from first_error

    async def _never_applied(self, replaced: Mapping[str, Nonces]) -> bool:
        """Return True if this write was certainly never applied: an envelope still lists the nonce of a value that the
        write was to replace, so it would also list the nonce of the write itself."""
        for key, nonces in replaced.items():
            entry = await self.backend.get(key)
            if entry and nonces and nonces[0] in unwrap(entry).nonces:
                return True
        return False

    async def _outcome(self, ops: Sequence[Op], nonce: str) -> TxnResult | None:
        """Return the result if the transaction was applied, or if it only deletes and all its keys are absent.
        Otherwise, return None."""
        found = {op.key: await self.backend.get(op.key) for op in ops}
        if ops and not any(isinstance(op, Put) for op in ops):
            return TxnResult((None,) * len(ops)) if not any(found.values()) else None
        applied = False
        revisions: list[Revision | None] = []
        for op in ops:
            entry = found[op.key]
            nonces = unwrap(entry).nonces if entry and isinstance(op, Put) else ()
            applied = applied or nonce in nonces
            if isinstance(op, Delete):
                revisions.append(None)
            elif entry and nonces[0] == nonce:
                revisions.append(entry.revision)
            else:  # overwritten since: return a revision that no key has
                revisions.append(Revision(object()))
        return TxnResult(tuple(revisions)) if applied else None


def _wrapped(op: Op, nonces: Nonces) -> Op:
    return Put(op.key, wrap(op.value, nonces), op.session) if isinstance(op, Put) else op
