"""The status of a store: its state, the controller, the brokers, and the sizes of its content."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from parley.broker.controller.controller import ELECTION
from parley.broker.membership.joining import BROKERS_GROUP
from parley.broker.metadata.encoding import registration_from_bytes
from parley.broker.metadata.types import BrokerRegistration
from parley.consensus.backend import Backend, Entry, WatchCount
from parley.consensus.recipes.elections import FOLDER as ELECTIONS
from parley.consensus.recipes.groups import FOLDER as GROUPS
from parley.consensus.recipes.keyvalue import FOLDER as DATA
from parley.consensus.recipes.settled_write import unwrap
from parley.consensus.store_move.store_copy import everything
from parley.consensus.store_move.store_record import IN_CHARGE_STATES, RECORD_FOLDER, StoreRecord, read_record


@dataclass(frozen=True, slots=True)
class Present:
    """A broker that has a session, and its epoch."""

    broker: BrokerRegistration
    epoch: int
    session: str


@dataclass(frozen=True, slots=True)
class Status:
    """The content of a store. The keys were read one after another, while it may have changed.

    ``controller_epoch`` is the epoch of the latest controller. ``sessions`` are the sessions that keys are bound to.
    ``watches`` is the number of open watches on the store's servers. ``sizes`` contains, by the beginning of the
    keys, the number of keys and the total size of these keys and their values in bytes.
    """

    store: str
    identity: str
    record: StoreRecord
    cluster_id: str | None
    controller: int | None
    controller_epoch: int
    members: tuple[Present, ...]
    sessions: tuple[str, ...]
    watches: WatchCount
    sizes: dict[str, tuple[int, int]]

    @property
    def state(self) -> str:
        """The state of the store, or "empty" if no cluster has used it yet."""
        is_empty = self.record.state in IN_CHARGE_STATES and not self.sizes
        return "empty" if is_empty else self.record.state.value

    def as_data(self) -> dict[str, Any]:
        """Return the status as JSON data."""
        other = self.record.other
        move = {
            "id": self.record.move,
            "other": other.url if other else None,
            "done": self.record.is_move_done,
            "note": self.record.note,
        }
        return {
            "store": self.store,
            "identity": self.identity,
            "state": self.state,
            "term": self.record.term,
            "move": move,
            "clusterId": self.cluster_id,
            "controller": self.controller,
            "controllerEpoch": self.controller_epoch,
            "members": [
                {"broker": each.broker.broker_id, "epoch": each.epoch, "session": each.session, "endpoints": _at(each)}
                for each in self.members
            ],
            "sessions": list(self.sessions),
            "watches": {"count": self.watches.open, "source": self.watches.source},
            "keys": {kind: {"count": count, "bytes": size} for kind, (count, size) in self.sizes.items()},
        }

    def as_text(self) -> list[str]:
        """Return the status as lines of text."""
        state = self.state
        if self.record.other is not None:
            state += f" (latest move: {self.record.other.url}{'; ' if self.record.note else ''}{self.record.note})"
        controller = "none" if self.controller is None else str(self.controller)
        lines = [
            f"Store:        {self.store}",
            f"Identity:     {self.identity}",
            f"State:        {state}",
            f"Cluster ID:   {self.cluster_id or 'none'}",
            f"Controller:   {controller} (epoch {self.controller_epoch})",
            f"Members:      {len(self.members)}",
        ]
        lines += [
            f"  broker {each.broker.broker_id}  epoch {each.epoch}  session {each.session}  {' '.join(_at(each))}"
            for each in self.members
        ]
        count = "unknown" if self.watches.open is None else str(self.watches.open)
        lines += [f"Sessions:     {len(self.sessions)}", f"Watches:      {count} ({self.watches.source})", "Keys:"]
        width = max(map(len, self.sizes), default=0)
        return lines + [
            f"  {kind:<{width}}  {count:>7}  {size:>10} bytes" for kind, (count, size) in self.sizes.items()
        ]


def _at(present: Present) -> list[str]:
    return [f"{each.listener}://{each.host}:{each.port}" for each in present.broker.endpoints]


async def status_of(backend: Backend, url: str) -> Status:
    """Read the whole store. Raises the store's errors, and BadConfig if its keys do not belong to a Parley cluster.
    ``url`` is only reported."""
    record, _ = await read_record(backend)
    entries = {each.key: each for each in await everything(backend)}
    election = f"{ELECTIONS}{ELECTION}/"
    leader, epoch = entries.get(f"{election}leader"), entries.get(f"{election}epoch")
    cluster = entries.get(f"{DATA}cluster")
    return Status(
        store=url,
        identity=backend.identity,
        record=record,
        cluster_id=json.loads(unwrap(cluster).value)["cluster_id"] if cluster else None,
        controller=_carried(leader, "candidate").broker_id if leader else None,
        controller_epoch=int(unwrap(epoch).value) if epoch else 0,
        members=tuple(
            Present(_carried(each, "data"), json.loads(unwrap(each).value)["incarnation"], each.session or "")
            for key, each in entries.items()
            if key.startswith(f"{GROUPS}{BROKERS_GROUP}/")
        ),
        sessions=tuple(sorted({each.session for each in entries.values() if each.session is not None})),
        watches=await backend.watch_count(),
        sizes=_sizes(entries),
    )


def _carried(entry: Entry, field: str) -> BrokerRegistration:
    """Return the broker registration that a membership or leadership entry contains in ``field``."""
    return registration_from_bytes(json.loads(unwrap(entry).value)[field].encode("latin-1"))


def _sizes(entries: dict[str, Entry]) -> dict[str, tuple[int, int]]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for key, entry in entries.items():
        if key.startswith(RECORD_FOLDER):
            continue
        kind = "/".join(key.split("/")[: 2 if key.startswith(DATA) else 1])
        counts[kind] += 1
        sizes[kind] += len(key) + len(entry.value)
    return {kind: (counts[kind], sizes[kind]) for kind in sorted(counts)}
