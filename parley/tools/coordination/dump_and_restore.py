"""The lasting content of a store as JSON that a person can read, and back.

``entries`` has every key that outlives sessions: topics, partitions, settings, the counters of ids, the epochs of
elections, the incarnations of members. A value that is JSON stands as it is, any other as ``{"$base64": ...}``. Secret
settings are masked unless they are asked for; a dump with masks cannot be restored.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parley.broker.config import BrokerConfig
from parley.broker.controller.stored_metadata import CONFIGS
from parley.consensus.backend import Backend, Entry, Revision
from parley.consensus.keys import check_key
from parley.consensus.recipes.keyvalue import FOLDER as DATA
from parley.consensus.recipes.settled_write import unwrap, wrap
from parley.consensus.store_claim import Claim
from parley.consensus.store_copy import Content, carry_out, content, difference, everything, too_large
from parley.consensus.store_record import IN_CHARGE_STATES, RECORD_FOLDER, StoreRecord, StoreState, read_record

FORMAT = "parley-coordination-1"
MASK = "<hidden>"
_RAW = "$base64"
_HELD_MS = 10_000
"""How long brokers that begin on the store just then wait at most, should we be killed."""
_SETTLE_S = 30.0


class NotDumped(Exception):
    """The store is not in charge: what it holds is not the cluster's state. The text says where that is."""


class NotRestored(Exception):
    """The dump cannot or must not be restored there; the text says why."""


async def dump(backend: Backend, *, show_secrets: bool) -> dict[str, Any]:
    """Everything that lasts in a store.

    :raises NotDumped: another store is in charge.
    :raises CoordinationError: what the store raises.
    """
    record, _ = await read_record(backend)
    if record.state not in IN_CHARGE_STATES:
        elsewhere = f"; dump {record.other.url}" if record.other is not None else ""
        raise NotDumped(f"the store is {record.state.value}, what it holds is out of date{elsewhere}")
    entries = {
        key: _readable(unwrap(Entry(key, value, Revision(None))).value)
        for key, value in (await content(backend)).items()
    }
    return {
        "format": FORMAT,
        "identity": backend.identity,
        "term": record.term,
        "past": list(record.past),
        "begun": record.begun,
        "entries": entries if show_secrets else {key: _masked(key, value) for key, value in entries.items()},
    }


def _readable(value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return {_RAW: base64.b64encode(value).decode()}


def _stored(value: Any) -> bytes:
    if isinstance(value, dict) and value.keys() == {_RAW}:
        return base64.b64decode(value[_RAW], validate=True)
    return json.dumps(value, separators=(",", ":")).encode()


def _masked(key: str, value: Any) -> Any:
    if not key.startswith(DATA + CONFIGS) or not isinstance(value, dict):
        return value
    return {name: MASK if _is_secret(name) else one for name, one in value.items()}


def _is_secret(name: str) -> bool:
    """Whether a setting is a secret, also under a prefix such as that of a listener."""
    for known, key in BrokerConfig.KEYS.items():
        if key.is_sensitive and (name == known or name.endswith(f".{known}")):
            return True
    return False


async def restore(backend: Backend, dumped: Mapping[str, Any], *, overwrite: bool) -> int:
    """Make a store hold what the dump holds, and be in charge of it; the number of keys.

    Brokers whose data belongs to the store that was dumped take this one for its successor.

    :raises NotRestored: the dump makes no sense or has masks; the store is in use, or not empty and not to be
        overwritten.
    :raises CoordinationError: what the store raises; it is then not in charge, and restoring again does no harm.
    """
    wanted, successor = _read(dumped)
    if backend.identity == dumped["identity"] and not overwrite:
        raise NotRestored("this is the store that the dump was made of; --overwrite puts it back to what it was then")
    if (wrong := too_large(backend.capabilities, wanted)) is not None:
        raise NotRestored(f"the store cannot take it: {wrong}")

    def decide(was: StoreRecord, there: list[Entry]) -> StoreRecord:
        if any(each.session for each in there):
            raise NotRestored("brokers are running on this store; stop all of them first")
        if there and not overwrite:
            raise NotRestored(
                f"the store is not empty: it has {len(there)} keys, such as {there[0].key}; see --overwrite"
            )
        if was.state not in IN_CHARGE_STATES and not overwrite:
            raise NotRestored(f"the store is {was.state.value}: a cluster that moved knows it; see --overwrite")
        return replace(successor, term=max(successor.term, was.term + 1), begun=max(successor.begun, was.begun))

    move = secrets.token_hex(8)
    claim = Claim(backend, move, ttl_ms=_HELD_MS, rng=secrets.SystemRandom(), settle_s=_SETTLE_S)
    await claim.make(decide)
    has = {each.key: each.value for each in await everything(backend) if not each.key.startswith(RECORD_FOLDER)}
    await carry_out(backend, difference(has, wanted), claim.check)
    await claim.take("restored from a dump")
    return len(wanted)


def _read(dumped: Mapping[str, Any]) -> tuple[Content, StoreRecord]:
    """What is to be stored, and the record that goes with it."""
    if not isinstance(dumped, dict) or dumped.get("format") != FORMAT:
        raise NotRestored("this is no dump of a coordination store")
    nonce = (secrets.token_hex(8),)
    try:
        masked = [key for key, value in dumped["entries"].items() if isinstance(value, dict) and MASK in value.values()]
        if masked:
            raise NotRestored(
                f"secrets are masked in it ({masked[0]}); only a dump with --show-secrets can be restored"
            )
        wanted = {}
        for key, value in dumped["entries"].items():
            check_key(key)
            if key.startswith(
                RECORD_FOLDER
            ):  # written by moves and restores only: with another record nobody could use it
                raise ValueError(f"{key} is no key of a cluster's state")
            wanted[key] = wrap(_stored(value), nonce)
        past = (str(dumped["identity"]), *map(str, dumped["past"]))
        term, begun = int(dumped["term"]) + 1, int(dumped.get("begun", 0))
        return wanted, StoreRecord(StoreState.CLAIMED, term, past, note="being restored", begun=begun)
    except (KeyError, TypeError, AttributeError, ValueError, binascii.Error) as error:
        raise NotRestored(f"the dump is damaged: {error!r}") from error
