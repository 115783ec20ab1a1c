"""Checks of the brokers' settings that all brokers of a cluster should share. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from parley.broker.config.broker_keys import BrokerKeys
from parley.broker.config.key_definition import Dynamic
from parley.tools.doctor.facts import Broker, Cluster
from parley.tools.doctor.findings import Seen, some
from parley.tools.plurals import plural

SHARED: Final = (
    "default.replication.factor",
    "min.insync.replicas",
    "num.partitions",
    "auto.create.topics.enable",
    "delete.topic.enable",
    "auto.leader.rebalance.enable",
    "unclean.leader.election.enable",
    "unclean.recovery.strategy",
    "log.cleanup.policy",
    "message.max.bytes",
    *(
        f"{topic}.{setting}"
        for topic, isr in (
            ("offsets.topic", ()),
            ("transaction.state.log", ("min.isr",)),
            ("share.coordinator.state.topic", ("min.isr",)),
        )
        for setting in ("replication.factor", *isr, "num.partitions")
    ),
)
"""The settings that the controller, a coordinator or any leader applies to topics of the whole cluster.

If their values differ, the result depends on which broker has that role.
"""


def different(cluster: Cluster) -> Iterator[Seen]:
    """Find settings of the whole cluster whose values differ between brokers."""
    found = {key: values for key in SHARED if len(set((values := _values(cluster, key)).values())) > 1}
    if found:
        yield Seen(
            f"the brokers have different values of {plural(len(found), 'setting')} that should be the same on all: "
            f"{some(found)}",
            [f"{key}: {_by_value(values)}" for key, values in found.items()],
            next=list(_steps(cluster, found)),
        )


def _values(cluster: Cluster, key: str) -> Mapping[int, str]:
    return {
        each.id: each.settings[key] for each in cluster.running if each.settings is not None and key in each.settings
    }


def _by_value(values: Mapping[int, str]) -> str:
    brokers: dict[str, list[int]] = {}
    for id_, value in values.items():
        brokers.setdefault(value, []).append(id_)
    return "; ".join(f"{value or 'empty'} on broker {some(ids)}" for value, ids in brokers.items())


def _steps(cluster: Cluster, found: Mapping[str, Mapping[int, str]]) -> Iterator[str]:
    """Yield the steps that give all brokers the value that most of them have."""
    in_files: dict[int, list[str]] = {}
    for key, values in found.items():
        wanted = _of_most(values)
        if wanted is None:
            yield f"choose one value of {key}, and give it to all brokers"
            continue
        others = [each for each in cluster.running if values.get(each.id, wanted) != wanted]
        if BrokerKeys.KEYS[key].dynamic is Dynamic.CLUSTER_WIDE:
            yield from _at_run_time(key, wanted, others)
        else:
            for each in others:
                in_files.setdefault(each.id, []).append(f"{key}={wanted}")
    for id_, settings in in_files.items():
        yield f"set {', '.join(settings)} on broker {id_}, in its file or with --override, and restart it"


def _of_most(values: Mapping[int, str]) -> str | None:
    """Return the most frequent value, or None if several are equally frequent."""
    (wanted, count), (_, next_count) = Counter(values.values()).most_common(2)
    return wanted if count > next_count else None


def _at_run_time(key: str, wanted: str, others: list[Broker]) -> Iterator[str]:
    alter = "parley configs --alter --entity-type brokers"
    own = [each.id for each in others if key in each.own_settings]
    for id_ in own:
        yield f"{alter} --entity-name {id_} --delete-config {key}"
    if len(own) < len(others):
        yield f"{alter} --entity-default --add-config {key}={wanted}"
