"""Checks of a properties file, and of the machine on which its broker is to run. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parley.tools.doctor.facts import Folder, Machine
from parley.tools.doctor.findings import Seen, some
from parley.tools.doctor.replica_checks import is_local
from parley.tools.plurals import plural

_EVERYWHERE = ("", "0.0.0.0", "::")

# --- The file ---


def contradictory(machine: Machine) -> Iterator[Seen]:
    """Find settings that prevent the broker from starting."""
    for key, text in machine.problems:
        yield Seen(text, [f"{key} in {machine.path}"])


def unknown(machine: Machine) -> Iterator[Seen]:
    """Find unknown settings, most of which are misspelled."""
    for key, meant in machine.unknown:
        hint = f": did you mean {meant}?" if meant else ""
        advice = (f"rename {key} to {meant} in {machine.path}",) if meant else (f"remove {key} from {machine.path}",)
        yield Seen(f"{key} is not a configuration key{hint}", [machine.path], next=advice)


def ignored(machine: Machine) -> Iterator[Seen]:
    """Find settings that only Apache Kafka uses, and deprecated ones."""
    for _, text in machine.ignored:
        yield Seen(text, [machine.path])


# --- Listeners ---


def taken(machine: Machine) -> Iterator[Seen]:
    """Find ports that another process uses."""
    for each in machine.listeners:
        if not each.is_taken or (machine.running is not None and each.holder == machine.running):
            continue
        by = f"by {each.holder}" if each.holder else "by a process that this user may not see"
        stop = f"stop it (kill {each.holder.pid})" if each.holder else "run this command as root to see it; stop it"
        yield Seen(
            f"port {each.port} of {each.name} is taken {by}",
            [f"bind({each.host or '0.0.0.0'}:{each.port}): {each.error}"],
            next=(f"{stop}, or give {each.name} another port in {each.key}",),
        )


def cannot_bind(machine: Machine) -> Iterator[Seen]:
    """Find addresses that this machine does not have, or that this user may not use."""
    for each in machine.listeners:
        if each.error and not each.is_taken:
            yield Seen(f"{each.name} cannot listen on {each.host}:{each.port}: {each.error}", [each.key])


def unresolvable(machine: Machine) -> Iterator[Seen]:
    """Find advertised names that do not resolve to an address."""
    for each in machine.advertised:
        if each.error:
            yield Seen(
                f"{each.name} advertises {each.host}:{each.port}, and this machine cannot resolve {each.host}",
                [each.error],
            )


def local_to_others(machine: Machine) -> Iterator[Seen]:
    """Find advertised addresses that make clients on other machines connect to themselves."""
    bound = {each.name: each.host for each in machine.listeners}
    for each in machine.advertised:
        host = bound.get(each.name, "127.0.0.1")
        is_open = host in _EVERYWHERE or not is_local(host)
        if is_open and (is_local(each.host) or (each.resolved and all(map(is_local, each.resolved)))):
            yield Seen(
                f"{each.name} listens for other machines ({host or '0.0.0.0'}) and advertises {each.host}:{each.port}: "
                "their clients connect to themselves",
                [f"{each.host} is {some(each.resolved)}"] if each.resolved else [],
            )


# --- Log directories ---


def unusable(machine: Machine) -> Iterator[Seen]:
    """Find log directories that the broker cannot use."""
    for each in machine.folders:
        if each.error:
            yield Seen(f"{each.path} cannot be used: {each.error}", [f"ls -ld {each.path}"])


def missing_directories(machine: Machine) -> Iterator[Seen]:
    """Find log directories that were removed or emptied since the broker last joined."""
    store, id_ = machine.store, machine.broker_id
    if store is None or id_ is None or any(each.error for each in machine.folders):
        return
    had, new = store.registered.get(id_, 0), [each.path for each in machine.folders if each.cluster_id is None]
    if new and len(machine.folders) - len(new) < had:
        yield Seen(
            f"broker {id_} had {plural(had, 'log directory', 'log directories')}, and {some(new)} "
            "is empty or does not exist",
            [f"its registration in the store {store.url}"],
        )


def locked(machine: Machine) -> Iterator[Seen]:
    """Find log directories locked by a process other than this broker."""
    for each in machine.folders:
        if each.holder is not None and each.holder != machine.running:
            yield Seen(
                f"{each.path} is locked by {each.holder}",
                [f"{each.path}/.lock"],
                next=(f"stop it (kill {each.holder.pid}), or name another folder in log.dirs",),
            )


def other_cluster(machine: Machine) -> Iterator[Seen]:
    """Find log directories of a cluster other than the store's, or of several clusters."""
    ids = {each.cluster_id for each in machine.folders if each.cluster_id}
    expected = machine.store.cluster_id if machine.store is not None else None
    for each in machine.folders:
        if expected and each.cluster_id and each.cluster_id != expected:
            yield Seen(
                f"{each.path} belongs to cluster {each.cluster_id}, and the store to cluster {expected}",
                [f"cluster.id in {each.path}/meta.properties", f"the store is {machine.store.url}"]
                if machine.store
                else [],
            )
    if not expected and len(ids) > 1:
        yield Seen(f"the log directories belong to different clusters: {some(sorted(ids))}", owners(machine.folders))


def owners(folders: Sequence[Folder]) -> Sequence[str]:
    """Return, as evidence, the cluster and the broker to which each of these directories belongs."""
    return [f"{each.path}: cluster {each.cluster_id}, broker {each.broker_id}" for each in folders if each.cluster_id]


def other_broker(machine: Machine) -> Iterator[Seen]:
    """Find log directories of another broker."""
    ids = {each.broker_id for each in machine.folders if each.broker_id is not None}
    for each in machine.folders:
        if machine.broker_id is not None and each.broker_id not in (None, machine.broker_id):
            yield Seen(
                f"{each.path} belongs to broker {each.broker_id}, but the file belongs to broker {machine.broker_id}",
                [f"broker.id in {each.path}/meta.properties"],
            )
    if machine.broker_id is None and len(ids) > 1:
        yield Seen(f"the log directories belong to different brokers: {some(sorted(ids))}", owners(machine.folders))


def malformed_owner(machine: Machine) -> Iterator[Seen]:
    """Find ``meta.properties`` files that cannot be read."""
    for each in machine.folders:
        if each.malformed:
            yield Seen(each.malformed, [f"{each.path}/meta.properties"])


# --- The broker's id ---


def duplicate_id(machine: Machine) -> Iterator[Seen]:
    """Find another broker that has this broker's id and a session in the store."""
    store, id_ = machine.store, machine.broker_id
    if store is None or id_ is None or id_ not in store.members or machine.running is not None:
        return
    there = set(store.members[id_])
    ours = {f"{each.host}:{each.port}" for each in machine.advertised}
    if not there & ours:
        yield Seen(
            f"broker.id {id_} is used by another broker, at {some(sorted(there))}",
            [f"its session in the store {store.url}", f"this file advertises {some(sorted(ours))}"],
        )
