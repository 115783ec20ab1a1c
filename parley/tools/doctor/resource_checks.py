"""Checks of disks, clocks, certificates, descriptors and logs, in a cluster or on a machine. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from parley.tools.cli.byte_sizes import bytes_text
from parley.tools.doctor.facts import Cluster, Machine
from parley.tools.doctor.findings import Seen, some
from parley.tools.plurals import plural

FULL: Final = 0.02
NEARLY_FULL: Final = 0.15
"""A disk is nearly full, or full, if at most this fraction is free (docs/operations.md)."""
CLOCK_S: Final = 2.0
"""The difference in seconds up to which clocks count as equal: the times compared are whole seconds, and responses take
time."""
EXPIRES_SOON: Final = timedelta(days=30)
DESCRIPTORS_LEFT: Final = 0.1


def full(cluster: Cluster) -> Iterator[Seen]:
    """Find log directories on full disks."""
    yield from _cluster_disks(cluster, 0.0, FULL)


def nearly_full(cluster: Cluster) -> Iterator[Seen]:
    """Find log directories on nearly full disks."""
    yield from _cluster_disks(cluster, FULL, NEARLY_FULL)


def _cluster_disks(cluster: Cluster, above: float, up_to: float) -> Iterator[Seen]:
    for broker in cluster.brokers:
        for each in broker.directories or ():
            if each.total and each.free is not None and (seen := _disk(each.free, each.total, above, up_to)):
                yield Seen(
                    f"the disk of {each.path} on broker {broker.id} has {seen}", [_held(broker.id, each.replicas)]
                )


def _held(broker: int, replicas: object) -> str:
    sizes = [(each.size, topic) for (topic, _), each in dict(replicas).items()]  # type: ignore[call-overload]
    if not sizes:
        return f"broker {broker} has no replica there"
    topic = max(sizes)[1]
    return f"{plural(len(sizes), 'replica')} of {bytes_text(sum(size for size, _ in sizes))}; the largest is of {topic}"


def _disk(free: int, total: int, above: float, up_to: float) -> str:
    """Describe the free space if its fraction of the total is above ``above`` and at most ``up_to``; otherwise return
    an empty string. With ``above`` 0, a disk without free space is included."""
    part = free / total
    is_full = above == 0 and part <= up_to
    return f"{bytes_text(free)} free, {part:.1%} of {bytes_text(total)}" if is_full or above < part <= up_to else ""


def full_folder(machine: Machine) -> Iterator[Seen]:
    """Find log directories of this machine on full disks."""
    yield from _folders(machine, 0.0, FULL)


def nearly_full_folder(machine: Machine) -> Iterator[Seen]:
    """Find log directories of this machine on nearly full disks."""
    yield from _folders(machine, FULL, NEARLY_FULL)


def _folders(machine: Machine, above: float, up_to: float) -> Iterator[Seen]:
    for each in machine.folders:
        if each.total and (seen := _disk(each.free, each.total, above, up_to)):
            yield Seen(f"the disk of {each.path} has {seen}", [f"df -h {each.path}"])


def few_inodes(machine: Machine) -> Iterator[Seen]:
    """Find log directories on file systems that have almost no free inodes."""
    for each in machine.folders:
        if each.inodes and each.inodes_free <= FULL * each.inodes:
            yield Seen(
                f"the file system of {each.path} has {each.inodes_free:,} of {each.inodes:,} inodes free: "
                "no segments or partitions can be created",
                [f"df -i {each.path}"],
            )


def offline_directory(cluster: Cluster) -> Iterator[Seen]:
    """Find log directories that have failed."""
    for broker in cluster.brokers:
        for each in broker.directories or ():
            if each.error:
                yield Seen(
                    f"log directory {each.path} of broker {broker.id} is offline, with all partitions in it",
                    [f"the broker reports {each.error}"],
                )


# --- Clocks ---


def cluster_clocks(cluster: Cluster) -> Iterator[Seen]:
    """Find brokers whose clock differs from this machine's."""
    for broker in cluster.brokers:
        if broker.metrics is not None:
            yield from _clock(f"the clock of broker {broker.id}", broker.metrics.clock_ahead_s, broker.metrics.address)


def machine_clock(machine: Machine) -> Iterator[Seen]:
    """Yield an observation if this machine's clock differs from that of the store."""
    if machine.store is not None:
        yield from _clock("the clock of the coordination store", machine.store.clock_ahead_s, machine.store.url)


def _clock(what: str, ahead_s: float | None, where: str) -> Iterator[Seen]:
    if ahead_s is not None and abs(ahead_s) > CLOCK_S:
        word = "ahead of" if ahead_s > 0 else "behind"
        yield Seen(f"{what} is {abs(ahead_s):,.0f} s {word} this machine's", [f"the time in the response of {where}"])


# --- Certificates ---


def expired(cluster: Cluster) -> Iterator[Seen]:
    """Find brokers' certificates that have expired."""
    for address, at in cluster.certificates.items():
        if at <= cluster.now:
            yield _expired(address, at)


def expiring(cluster: Cluster) -> Iterator[Seen]:
    """Find brokers' certificates that will expire soon."""
    for address, at in cluster.certificates.items():
        if cluster.now < at <= cluster.now + EXPIRES_SOON:
            yield _expiring(address, at, cluster.now)


def expired_file(machine: Machine) -> Iterator[Seen]:
    """Find certificates in files of this machine that have expired."""
    for each in machine.certificates:
        if each.expires is not None and each.expires <= machine.now:
            yield _expired(each.listener, each.expires)


def expiring_file(machine: Machine) -> Iterator[Seen]:
    """Find certificates in files of this machine that will expire soon."""
    for each in machine.certificates:
        if each.expires is not None and machine.now < each.expires <= machine.now + EXPIRES_SOON:
            yield _expiring(each.listener, each.expires, machine.now)


def _expired(whose: str, at: datetime) -> Seen:
    return Seen(f"the certificate of {whose} has expired: clients reject it", [f"expired {at.isoformat()}"], at)


def _expiring(whose: str, at: datetime, now: datetime) -> Seen:
    return Seen(
        f"the certificate of {whose} expires in {plural((at - now).days, 'day')}", [f"expires {at.isoformat()}"]
    )


def unreadable_keys(machine: Machine) -> Iterator[Seen]:
    """Find key stores that cannot be read."""
    for each in machine.certificates:
        if each.error:
            yield Seen(f"the keys of {each.listener} cannot be used: {each.error}")


# --- Descriptors ---


def few_descriptors_left(cluster: Cluster) -> Iterator[Seen]:
    """Find brokers that are close to their limit of open files, or whose limit is too low for their replicas."""
    for broker in cluster.brokers:
        if broker.metrics is None:
            continue
        most, now = broker.metrics.sum("process_max_fds"), broker.metrics.sum("process_open_fds")
        replicas = int(broker.metrics.sum("parley_replicas"))
        advised = _advised(replicas)
        if most and (now >= (1 - DESCRIPTORS_LEFT) * most or most < advised):
            yield Seen(
                f"broker {broker.id} may open {most:,.0f} files, has {now:,.0f} open and hosts "
                f"{plural(replicas, 'replica')}: {advised:,} are advised",
                [f"{broker.metrics.address}/metrics"],
            )


def low_limit(machine: Machine) -> Iterator[Seen]:
    """Yield an observation if the limit of open files is too low for the partitions on the disks."""
    advised = _advised(machine.partitions)
    if machine.descriptors is not None and machine.descriptors < advised:
        whose = f"of {machine.running}" if machine.running else "of this shell, if the broker is started from it"
        yield Seen(
            f"the limit of open files is {machine.descriptors:,}; {advised:,} are advised for "
            f"{plural(machine.partitions, 'partition')}",
            [f"the limit {whose}"],
        )


def _advised(partitions: int) -> int:
    from parley.broker.runtime.exhaustion_watch import limit_advised

    return limit_advised(partitions)


# --- Logs ---


def uncleanable(cluster: Cluster) -> Iterator[Seen]:
    """Find compacted logs that their broker cannot compact."""
    for broker in cluster.brokers:
        if broker.metrics is None:
            continue
        for labels, count in broker.metrics.of("parley_uncleanable_partitions"):
            if count:
                yield Seen(
                    f"broker {broker.id} cannot compact {plural(int(count), 'log')} in "
                    f"{labels.get('directory', 'a log directory')}: they grow without bound",
                    [f"{bytes_text(int(broker.metrics.sum('parley_uncleanable_bytes')))} in all"],
                )


def damaged(cluster: Cluster) -> Iterator[Seen]:
    """Find logs with damaged records, as reported by their brokers."""
    for broker in cluster.brokers:
        if broker.metrics is None:
            continue
        count = int(broker.metrics.sum("parley_damaged_partitions"))
        lost = int(broker.metrics.sum("parley_damaged_ranges_without_copy"))
        if count:
            more = f"; no live replica has {plural(lost, 'range')} of them" if lost else ""
            advice = "start the other brokers; if no copy is left: docs/damage.md#skipping-records-that-are-lost"
            yield Seen(
                f"broker {broker.id} has damaged records in {plural(count, 'replica')}{more}",
                [f"{broker.metrics.address}/metrics"],
                next=("parley log-dirs --verify, which names the topics and offsets",) + ((advice,) if lost else ()),
            )


def damaged_file(machine: Machine) -> Iterator[Seen]:
    """Find segments with damaged batches, and missing logs and segments."""
    for each in machine.damage:
        if each.is_missing:
            yield Seen(f"{each.path} lacks records: {each.reason}")
        elif each.is_tail:
            text = f"{each.path} ends in a broken batch, as after a crash: the next start truncates it there"
            yield Seen(text, [f"byte {each.position:,}: {each.reason}"])
        else:
            yield Seen(f"{each.path} is damaged at byte {each.position:,}", [each.reason])


def strays(cluster: Cluster) -> Iterator[Seen]:
    """Find logs on the brokers' disks that belong to no topic of the cluster."""
    found = {
        broker.id: count
        for broker in cluster.brokers
        if broker.metrics is not None and (count := int(broker.metrics.sum("parley_log_directory_stray_logs")))
    }
    if found:
        yield Seen(
            f"{plural(sum(found.values()), 'stray log')} without a topic on broker {some(found)}: "
            "the store was rolled back, or the replicas were moved away while a broker was down",
            [f"broker {id_}: {plural(count, 'folder')} whose name ends in -stray" for id_, count in found.items()],
        )


def strays_in_folders(machine: Machine) -> Iterator[Seen]:
    """Find logs in this machine's log directories that belong to no topic of the cluster."""
    for each in machine.folders:
        if each.strays:
            yield Seen(
                f"{each.path} contains {plural(len(each.strays), 'stray log')} without a topic",
                each.strays[:5],
            )
