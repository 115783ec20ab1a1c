"""Checks of a cluster's brokers and partitions: running brokers, ISRs, leaders, reassignments. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from typing import Final

from parley.tools.doctor.facts import OF_STORE, Broker, Cluster, Partition, ReplicaSize
from parley.tools.doctor.findings import LISTED, Seen, some
from parley.tools.plurals import plural

INTERNAL: Final = ("__consumer_offsets", "__transaction_state", "__share_group_state")
FACTOR_WANTED: Final = 3
SKEWED: Final = 1.5
"""A broker leads too many partitions if it leads more than this multiple of its share."""
SKEW_PARTITIONS_MIN: Final = 10


def is_local(host: str) -> bool:
    """Return True if the host can be reached only from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() in ("localhost", "localhost.localdomain")


# --- Brokers and the controller ---


def down(cluster: Cluster) -> Iterator[Seen]:
    """Find brokers that hold replicas but are not running."""
    held = Counter(id_ for each in cluster.partitions for id_ in each.replicas)
    known = {each.id for each in cluster.brokers}
    for id_ in sorted(held.keys() | known):
        if cluster.runs(id_):
            continue
        broker = cluster.broker(id_)
        last = [each.name for each in cluster.partitions if id_ in each.replicas and len(_running(cluster, each)) == 1]
        text = f"broker {id_} is down; it holds replicas of {plural(held[id_], 'partition')}"
        if last:
            text += f", {len(last):,} of them with only one running replica left"
        evidence = [
            f"the cluster lists broker {id_} as fenced" if broker else f"the cluster does not list broker {id_}"
        ]
        evidence += [f"one running replica: {some(last)}"] if last else []
        yield Seen(text, evidence)


def _running(cluster: Cluster, partition: Partition) -> Sequence[int]:
    return [id_ for id_ in partition.replicas if cluster.runs(id_)]


def silent(cluster: Cluster) -> Iterator[Seen]:
    """Find brokers that are running according to the cluster, but do not respond to this client."""
    for broker in cluster.running:
        if broker.error and not (is_local(broker.host) and _is_elsewhere(cluster)):
            yield Seen(f"broker {broker.id} at {broker.address} does not respond to this client", [broker.error])


def localhost(cluster: Cluster) -> Iterator[Seen]:
    """Find brokers whose advertised address makes clients on other machines connect to themselves."""
    several = len({each.port for each in cluster.running}) < len(cluster.running)
    for broker in cluster.running:
        if is_local(broker.host) and (_is_elsewhere(cluster) or several):
            reached = some(f"{host}:{port}" for host, port in cluster.bootstrap)
            yield Seen(
                f"broker {broker.id} advertises {broker.address}: clients on other machines connect to themselves",
                [f"this client reached the cluster at {reached}"],
            )


def _is_elsewhere(cluster: Cluster) -> bool:
    """Return True if this client reached the cluster at an address that is not local to this machine."""
    return not all(is_local(host) for host, _ in cluster.bootstrap)


def no_controller(cluster: Cluster) -> Iterator[Seen]:
    """Yield an observation if the cluster has no controller."""
    if cluster.controller < 0:
        yield Seen(
            "no broker is the controller: no leader is elected, and no topic or setting can be changed",
            [f"brokers that respond: {some(each.id for each in cluster.brokers if each.responds) or 'none'}"],
        )


def mixed_versions(cluster: Cluster) -> Iterator[Seen]:
    """Find brokers of different releases."""
    groups: dict[object, list[int]] = {}
    for broker in cluster.running:
        if broker.apis:
            what = (tuple(sorted(broker.apis.items())), tuple(sorted(broker.features.items())))
            groups.setdefault(what, []).append(broker.id)
    if len(groups) > 1:
        alike = " and ".join(f"broker {some(ids)}" for ids in groups.values())
        yield Seen(
            f"the brokers run different releases; groups with the same release: {alike}",
            ["their APIs or supported features (ApiVersions) differ"],
        )


def not_finalized(cluster: Cluster) -> Iterator[Seen]:
    """Find features whose level is below the level that every broker supports."""
    running = [each for each in cluster.running if each.features]
    if not running:
        return
    behind = []
    for name in sorted(set.intersection(*(set(each.features) for each in running))):
        supported = min(each.features[name][1] for each in running)
        level = running[0].finalized.get(name, 0)
        if level < supported:
            behind.append((name, level, supported))
    if behind:
        yield Seen(
            "features are not at the level that all brokers support: " + some(name for name, _, _ in behind),
            [f"{name}: level {level}, supported {supported}" for name, level, supported in behind],
            next=[f"parley features upgrade --feature {name}={supported}" for name, _, supported in behind],
        )


# --- Replicas ---


def offline(cluster: Cluster) -> Iterator[Seen]:
    """Find partitions without a leader."""
    found = [each for each in cluster.partitions if each.leader < 0]
    if found:
        missing = sorted({id_ for each in found for id_ in each.replicas if not cluster.runs(id_)})
        why = f"; down brokers: {some(missing)}" if missing else ""
        yield Seen(
            f"no leader for {plural(len(found), 'partition')}: reads and writes fail{why}",
            [f"without a leader: {some(each.name for each in found)}"],
            next=list(_ways_to_a_leader(cluster, found)),
        )


def _ways_to_a_leader(cluster: Cluster, found: Sequence[Partition]) -> Iterator[str]:
    """Yield the steps that give these partitions a leader, starting with those that lose no records. Yields nothing if
    all their brokers run."""
    down = sorted({id_ for each in found for id_ in each.replicas if not cluster.runs(id_)})
    if not down:
        return
    yield f"start broker {some(down)} with its disks (see broker-down)"
    running = [each for each in found if _running(cluster, each)]
    if running:
        more = f", and for each of the other {len(running) - 1}" if len(running) > 1 else ""
        yield (
            "if the disks are lost, accept that records are: parley elect-leaders --election-type unclean "
            f"--topic {running[0].topic} --partition {running[0].index}{more}"
        )
    alone = [each for each in found if not _running(cluster, each)]
    if alone:
        yield (
            f"if the disks are lost, no replica of {some(each.name for each in alone)} is left. Start a broker with "
            "the same id on an empty folder: these partitions then begin empty. Or delete and create the topics"
        )


def shrunk(cluster: Cluster) -> Iterator[Seen]:
    """Find partitions with replicas out of sync, grouped by the broker that is missing from the ISR."""
    why: dict[int, list[Partition]] = {}
    moving = {(each.topic, each.partition): set(each.adding) for each in cluster.moves or ()}
    for each in cluster.partitions:
        adding = moving.get((each.topic, each.index), set())
        for id_ in set(each.replicas) - set(each.isr) - adding:
            why.setdefault(id_, []).append(each)
    for id_, partitions in sorted(why.items()):
        broker = cluster.broker(id_)
        partitions.sort(key=lambda each: each.topic.startswith("__"))  # the users' first
        reason = "it is down"
        if broker is not None and not broker.is_fenced:
            reason = f"it does not respond to this client: {broker.error}" if broker.error else "it runs, but is behind"
        yield Seen(
            f"broker {id_} is missing from the ISR of {plural(len(partitions), 'partition')}: {reason}",
            [f"{each.name}: replicas {list(each.replicas)}, in sync {list(each.isr)}" for each in partitions[:5]],
            next=() if cluster.runs(id_) else (f"start broker {id_} (see broker-down)",),
        )


def under_min_isr(cluster: Cluster) -> Iterator[Seen]:
    """Find partitions that reject writes with acks=all."""
    found = [
        (each, least)
        for each in cluster.partitions
        if each.leader >= 0 and len(each.isr) < (least := min(cluster.min_isr.get(each.topic, 1), len(each.replicas)))
    ]
    if found:
        yield Seen(
            f"too few replicas of {plural(len(found), 'partition')} are in sync: writes with acks=all are rejected",
            [f"{each.name}: in sync {list(each.isr)}, min.insync.replicas {least}" for each, least in found[:5]],
        )


def low_factor(cluster: Cluster) -> Iterator[Seen]:
    """Find internal topics with fewer replicas than the number of brokers allows."""
    wanted = min(FACTOR_WANTED, len(cluster.running))
    factors = {each.topic: len(each.replicas) for each in cluster.partitions if each.topic in INTERNAL}
    for topic, factor in sorted(factors.items()):
        if factor < wanted:
            yield Seen(
                f"{topic} has {plural(factor, 'replica')}, but could have {wanted} on {len(cluster.running)} brokers: "
                "its groups or transactions stop if a single broker fails",
                [f"replication factor {factor}"],
                next=_with_replicas([topic], wanted),
            )


def single_replicas(cluster: Cluster) -> Iterator[Seen]:
    """Find user topics with one replica, although there are several brokers."""
    if len(cluster.running) < 2:
        return
    topics = {each.topic for each in cluster.partitions if len(each.replicas) == 1 and each.leader >= 0} - set(INTERNAL)
    if topics:
        names = sorted(topics)
        yield Seen(
            f"{plural(len(topics), 'topic')} with one replica: {some(names)}",
            ["if its broker stops, such a partition has no leader; if its disk is lost, so are its records"],
            next=_with_replicas(names[:LISTED], min(FACTOR_WANTED, len(cluster.running))),
        )


def _with_replicas(topics: Sequence[str], factor: int) -> Sequence[str]:
    """Return the steps that give topics this number of replicas."""
    names = " ".join(f"--topic {topic}" for topic in topics)
    return (
        f"parley reassign --execute {names} --replication-factor {factor}",
        "parley reassign --list, until it lists none of these",
    )


def one_rack(cluster: Cluster) -> Iterator[Seen]:
    """Find partitions with all replicas in one rack although there are several racks."""
    racks = {each.id: each.rack for each in cluster.running}
    if len({rack for rack in racks.values() if rack}) < 2:
        return
    found: dict[str, list[Partition]] = {}
    for each in cluster.partitions:
        theirs = {racks.get(id_) for id_ in each.replicas}
        rack = next(iter(theirs))
        if len(each.replicas) > 1 and len(theirs) == 1 and rack:
            found.setdefault(rack, []).append(each)
    for rack, partitions in sorted(found.items()):
        yield Seen(
            f"all replicas of {plural(len(partitions), 'partition')} are in rack {rack}: they share its failures",
            [f"only on {rack}: {some(each.name for each in partitions)}"],
        )


def without_racks(cluster: Cluster) -> Iterator[Seen]:
    """Yield an observation if only some brokers have a rack, or all have the same rack."""
    racks = [each.rack for each in cluster.running]
    named = [rack for rack in racks if rack]
    if named and len(racks) > 1 and len(named) == len(racks) and len(set(named)) == 1:
        yield Seen(f"all {len(racks)} brokers are in rack {named[0]}: all data shares its failures", [])
    elif named and len(named) < len(racks):
        without = some(each.id for each in cluster.running if not each.rack)
        yield Seen(f"brokers without a rack, while others have one: {without}", [])


def shared_hosts(cluster: Cluster) -> Iterator[Seen]:
    """Find partitions with several replicas on one host although there are enough hosts."""
    hosts = _hosts(cluster)
    found = [each for each, most in _most_on_a_host(cluster) if most > 1 and hosts >= len(each.replicas)]
    if found:
        yield Seen(
            f"{plural(len(found), 'partition')} with several replicas on one machine, although there are enough "
            "machines: the machine's failure stops or loses more than one of them",
            [f"on one machine: {some(each.name for each in found)}"],
        )


def few_hosts(cluster: Cluster) -> Iterator[Seen]:
    """Find partitions with more replicas than there are hosts, so that some replicas must share a host."""
    hosts = _hosts(cluster)
    found = [(each, most) for each, most in _most_on_a_host(cluster) if most > 1 and hosts < len(each.replicas)]
    if found:
        most = max(most for _, most in found)
        yield Seen(
            f"up to {most} replicas of a partition share a machine, because the brokers run on "
            f"{plural(hosts, 'machine')}: {plural(len(found), 'partition')}",
            [f"with more replicas than machines: {some(each.name for each, _ in found)}"],
        )


def _hosts(cluster: Cluster) -> int:
    """Return the number of hosts on which running brokers are. A broker without a label counts as a host by itself."""
    return len({each.host_label or each.id for each in cluster.running})


def _most_on_a_host(cluster: Cluster) -> list[tuple[Partition, int]]:
    """Return each partition with the largest number of its replicas that share a host label. Returns an empty list if
    no broker has a label."""
    labels = {each.id: each.host_label for each in cluster.brokers if each.host_label}
    if not labels:
        return []
    return [
        (each, max(Counter(labels[id_] for id_ in each.replicas if id_ in labels).values(), default=0))
        for each in cluster.partitions
    ]


# --- Leaders ---


def _displaced(cluster: Cluster) -> list[Partition]:
    """Return the partitions whose preferred leader is in sync, but does not lead."""
    return [
        each
        for each in cluster.partitions
        if each.replicas and each.leader >= 0 and each.leader != each.replicas[0] and each.replicas[0] in each.isr
    ]


def not_preferred(cluster: Cluster) -> Iterator[Seen]:
    """Find partitions whose preferred leader could lead, but does not."""
    found = _displaced(cluster)
    if found:
        leads = Counter(each.leader for each in found)
        yield Seen(
            f"the preferred leader of {plural(len(found), 'partition')} does not lead, although it is in sync",
            [
                f"broker {id_} leads {count} in place of others"
                for id_, count in sorted(leads.items(), key=lambda each: (-each[1], each[0]))[:5]
            ]
            + [f"such as {some(each.name for each in found)}"],
            next=("nothing, until the coordination store responds: no leader can be elected (see store-away)",)
            if cluster.without_store
            else (),
        )


def skewed(cluster: Cluster) -> Iterator[Seen]:
    """Find brokers that lead much more than their share, even after the preferred leaders are elected again."""
    running = [each.id for each in cluster.running]
    displaced = _displaced(cluster)
    led = Counter(each.leader for each in cluster.partitions if each.leader >= 0)
    led = led - Counter(each.leader for each in displaced) + Counter(each.replicas[0] for each in displaced)
    if len(running) < 2 or led.total() < SKEW_PARTITIONS_MIN:
        return
    share = led.total() / len(running)
    for id_ in running:
        if led[id_] > SKEWED * share:
            yield Seen(
                f"broker {id_} leads {led[id_]} of {led.total()} partitions; an equal share is {share:.0f}",
                [f"broker {other}: {led[other]}" for other in running],
            )


# --- Moves ---


def stuck_moves(cluster: Cluster) -> Iterator[Seen]:
    """Find reassignments that make no progress."""
    for move in cluster.moves or ():
        gone = [id_ for id_ in move.adding if not cluster.runs(id_)]
        still = [id_ for id_ in move.adding if id_ in move.copied and _stands_still(*move.copied[id_], move.whole)]
        if gone:
            yield Seen(
                f"the reassignment of {move.name} waits for broker {some(gone)}, which is down",
                [f"adding {list(move.adding)}, removing {list(move.removing)}"],
            )
        elif still:
            evidence = [f"broker {id_}: {move.copied[id_][1].size:,} of {move.whole or 0:,} bytes" for id_ in still]
            yield Seen(f"the reassignment of {move.name} has not advanced in {cluster.interval_s:.0f} s", evidence)


def _stands_still(first: ReplicaSize, last: ReplicaSize, whole: int | None) -> bool:
    """Return True if the replica is behind and copied nothing between the two samples."""
    return first == last and whole is not None and last.size < whole


def sick(cluster: Cluster) -> Iterator[Seen]:
    """Find brokers whose ``/healthz`` reports a problem other than an outage of the store."""
    for broker in cluster.brokers:
        problems = [] if broker.metrics is None else [p for p in broker.metrics.problems if not p.startswith(OF_STORE)]
        if broker.metrics is not None and problems:
            yield Seen(f"{_named(broker)} reports: {some(problems)}", [f"{broker.metrics.address}/healthz"])


def _named(broker: Broker) -> str:
    return f"broker {broker.id}"
