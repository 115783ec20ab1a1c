"""Dump the persistent content of a store as readable JSON, and restore it.

``entries`` contains every persistent key: topics, partitions, settings, id counters, election epochs, and the
incarnations of members. A JSON value is included as it is, any other value as ``{"$base64": ...}``. Secret settings
are masked by default; a dump with masks cannot be restored.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parley.broker.config import BrokerConfig, TopicConfig
from parley.broker.controller.stored_metadata import CONFIGS, SCRAM, SECRETS
from parley.consensus.backend import Backend, Entry, Put, Revision
from parley.consensus.keys import check_key
from parley.consensus.recipes.keyvalue import FOLDER as DATA
from parley.consensus.recipes.settled_write import unwrap, wrap
from parley.consensus.store_move.store_claim import Claim
from parley.consensus.store_move.store_copy import Content, carry_out, content, difference, everything, too_large
from parley.consensus.store_move.store_record import (
    IN_CHARGE_STATES,
    RECORD_FOLDER,
    ROLLED_BACK_KEY,
    StoreRecord,
    StoreState,
    read_record,
)
from parley.tools.plurals import plural

FORMAT = "parley-coordination-1"
MASK = "<hidden>"
_RAW = "$base64"
_HELD_MS = 10_000
"""The maximum time, in milliseconds, that a broker waits for the store if it starts after this process was killed
during a restore."""
_SETTLE_S = 30.0


class NotDumped(Exception):
    """Raised if the store is not in charge, so that its content is not the cluster's state. The text names the store in
    charge."""


class NotRestored(Exception):
    """Raised if the dump cannot or must not be restored to this store. The text contains the reason."""


async def dump(backend: Backend, *, show_secrets: bool) -> dict[str, Any]:
    """Return the persistent content of a store as JSON data, in the form that ``restore`` accepts.

    Masks secret settings unless ``show_secrets``; a dump with masks cannot be restored. Raises NotDumped if another
    store is in charge, BadConfig if a value is not Parley's, and the store's errors.
    """
    record, _ = await read_record(backend)
    if record.state not in IN_CHARGE_STATES:
        elsewhere = f"; dump {record.other.url}" if record.other is not None else ""
        raise NotDumped(f"the store is {record.state.value}, so its content is out of date{elsewhere}")
    entries = {
        key: readable(unwrap(Entry(key, value, Revision(None))).value)
        for key, value in (await content(backend)).items()
    }
    return {
        "format": FORMAT,
        "identity": backend.identity,
        "term": record.term,
        "past": list(record.past),
        "begun": record.begun,
        "entries": entries if show_secrets else {key: masked(key, value) for key, value in entries.items()},
    }


def readable(value: bytes) -> Any:
    """Return the value parsed as JSON, or ``{"$base64": ...}`` with its base64 if it is not JSON."""
    try:
        return json.loads(value)
    except ValueError:
        return {_RAW: base64.b64encode(value).decode()}


def _stored(value: Any) -> bytes:
    if isinstance(value, dict) and value.keys() == {_RAW}:
        return base64.b64decode(value[_RAW], validate=True)
    return json.dumps(value, separators=(",", ":")).encode()


def masked(key: str, value: Any) -> Any:
    """Return a value, in the form that ``readable`` returns, with its secrets masked. ``key`` is its key in the
    store."""
    if key.startswith((DATA + SCRAM, DATA + SECRETS)):
        return dict.fromkeys(value, MASK) if isinstance(value, dict) else {_RAW: MASK}
    if not key.startswith(DATA + CONFIGS) or not isinstance(value, dict):
        return value
    return {name: MASK if _is_secret(name) else one for name, one in value.items()}


def _is_secret(name: str) -> bool:
    """Return True if a setting is secret or unknown. The name may have a prefix, such as that of a listener."""
    if name in TopicConfig.KEYS:
        return False
    found = [key for known, key in BrokerConfig.KEYS.items() if name == known or name.endswith(f".{known}")]
    return not found or any(key.is_sensitive for key in found)


async def restore(backend: Backend, dumped: Mapping[str, Any], *, overwrite: bool) -> int:
    """Replace the content of a store with a dump, and put the store in charge. Returns the number of keys.

    Brokers whose data belongs to the dumped store accept this store as its successor. A mark in the store
    (``ROLLED_BACK_KEY``) tells the next controller not to rely on the restored epochs and ISRs.

    Raises NotRestored if the dump is invalid or masked, if the store is in use, or if it is not empty and ``overwrite``
    is False. Raises CannotMove if another client starts to use the store at the same time. Also raises the store's
    errors: the store may then be partly written and not in charge, so repeat the call with ``overwrite``.
    """
    wanted, successor = _read(dumped)
    if backend.identity == dumped["identity"] and not overwrite:
        raise NotRestored("this store is the one that was dumped; use --overwrite to reset it to that state")
    if (wrong := too_large(backend.capabilities, wanted)) is not None:
        raise NotRestored(f"the dump exceeds a limit of this store: {wrong}")

    def decide(was: StoreRecord, there: list[Entry]) -> StoreRecord:
        if any(each.session for each in there):
            raise NotRestored("brokers are running on this store; stop all of them first")
        if there and not overwrite:
            raise NotRestored(
                f"the store is not empty: it contains {plural(len(there), 'key')}, such as {there[0].key}; "
                "see --overwrite"
            )
        if was.state not in IN_CHARGE_STATES and not overwrite:
            raise NotRestored(f"the store is {was.state.value}: a moved cluster still refers to it; see --overwrite")
        return replace(successor, term=max(successor.term, was.term + 1), begun=max(successor.begun, was.begun))

    move = secrets.token_hex(8)
    claim = Claim(backend, move, ttl_ms=_HELD_MS, rng=secrets.SystemRandom(), settle_s=_SETTLE_S)
    await claim.make(decide)
    has = {each.key: each.value for each in await everything(backend) if not each.key.startswith(RECORD_FOLDER)}
    mark = Put(ROLLED_BACK_KEY, b"restored from a dump")
    await carry_out(backend, [mark, *difference(has, wanted)], claim.check)
    await claim.take("restored from a dump")
    return len(wanted)


def _read(dumped: Mapping[str, Any]) -> tuple[Content, StoreRecord]:
    """Return the content to store, and its store record. Raises NotRestored if the dump is invalid."""
    if not isinstance(dumped, dict) or dumped.get("format") != FORMAT:
        raise NotRestored("this is not a dump of a coordination store")
    nonce = (secrets.token_hex(8),)
    try:
        masked = [key for key, value in dumped["entries"].items() if isinstance(value, dict) and MASK in value.values()]
        if masked:
            raise NotRestored(
                f"its secrets are masked ({masked[0]}); only a dump made with --show-secrets can be restored"
            )
        wanted = {}
        for key, value in dumped["entries"].items():
            check_key(key)
            if key.startswith(RECORD_FOLDER):  # a wrong store record would make the store unusable
                raise ValueError(f"{key} cannot be restored")
            wanted[key] = wrap(_stored(value), nonce)
        past = (str(dumped["identity"]), *map(str, dumped["past"]))
        term, begun = int(dumped["term"]) + 1, int(dumped.get("begun", 0))
        return wanted, StoreRecord(StoreState.CLAIMED, term, past, note="being restored", begun=begun)
    except (KeyError, TypeError, AttributeError, ValueError, binascii.Error) as error:
        raise NotRestored(f"the dump is damaged: {error!r}") from error
