"""Each check of the doctor's table on an example, and on healthy subjects, where it must find nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from parley.broker.metadata.terms import Term
from parley.broker.startup.cluster_joining import STORE as PROBLEM_OF_STORE
from parley.tools.cli import colors
from parley.tools.cli.invocation import INCOMPLETE
from parley.tools.doctor.examination import diagnosed
from parley.tools.doctor.facts import (
    Advertised,
    Broker,
    Certificate,
    Cluster,
    Damage,
    Directory,
    Folder,
    Group,
    GroupSample,
    Listener,
    Machine,
    Metrics,
    Missing,
    Move,
    OpenTransaction,
    Part,
    Partition,
    Process,
    ReplicaSize,
    Store,
)
from parley.tools.doctor.findings import Check, Severity, diagnose
from parley.tools.doctor.report import ERRORS, HEALTHY, WARNINGS, as_text, exit_code
from parley.tools.doctor.table import CHECKS

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SOON = NOW + timedelta(days=3)
PAST = NOW - timedelta(days=3)
DISK = 1 << 40
STORE = Store("etcd://db:2379/kafka", identity="s1", cluster_id="c1", members={1: ["b1:9092"]}, read_s=0.002)


def metrics(**samples: float) -> Metrics:
    return Metrics("http://b1:9464", {name: [({}, value)] for name, value in samples.items()}, clock_ahead_s=0.3)


BROKERS = [
    Broker(
        id_,
        f"b{id_}",
        9092,
        f"rack-{id_}",
        features={"f": (0, 2)},
        finalized={"f": 2},
        apis={0: (0, 11)},
        settings={},
        directories=[Directory("/data", "", DISK, DISK // 2)],
        metrics=metrics(process_max_fds=4096, process_open_fds=100, parley_replicas=12),
    )
    for id_ in (1, 2, 3)
]
PARTITIONS = [
    Partition("t", index, (1, 2, 3)[index % 3], tuple(((1, 2, 3) * 2)[index % 3 :][:3]), (1, 2, 3))
    for index in range(12)
]
VALID = {"b1:9092": NOW + timedelta(days=300)}
HEALTHY_CLUSTER = Cluster(
    NOW, [("b1", 9092)], "c1", 1, True, BROKERS, PARTITIONS, 10.0, {}, [], [], [], VALID, STORE
)  # fmt: skip
FOLDER = Folder("/data", total=DISK, free=DISK // 2, inodes=1000, inodes_free=900, cluster_id="c1", broker_id=1)
HEALTHY_MACHINE = Machine(
    NOW,
    "b.properties",
    broker_id=1,
    listeners=[Listener("listeners", "PLAINTEXT", "", 9092)],
    advertised=[Advertised("PLAINTEXT", "b1", 9092, ["10.0.0.1"])],
    folders=[replace(FOLDER, store_identity="s1")],
    certificates=[Certificate("listener SSL", NOW + timedelta(days=300))],
    descriptors=4096,
    partitions=10,
    store=STORE,
)
OTHER = Process(77, "nginx")


def broker(**changes: Any) -> Cluster:
    """Return the healthy cluster with a changed first broker."""
    return replace(HEALTHY_CLUSTER, brokers=[replace(BROKERS[0], **changes), *BROKERS[1:]])


def partition(**changes: Any) -> Cluster:
    """Return the healthy cluster with a changed first partition."""
    return replace(HEALTHY_CLUSTER, partitions=[replace(PARTITIONS[0], **changes), *PARTITIONS[1:]])


def group(first: GroupSample, last: GroupSample) -> Cluster:
    return replace(HEALTHY_CLUSTER, groups=[Group("g", first, last)])


def sample(committed: int, end: int, *, members: int = 1, state: str = "Stable") -> GroupSample:
    return GroupSample(state, members, {("t", 0): committed}, {("t", 0): end - committed})


def cluster(**changes: Any) -> Cluster:
    return replace(HEALTHY_CLUSTER, **changes)


def machine(**changes: Any) -> Machine:
    return replace(HEALTHY_MACHINE, **changes)


def folder(**changes: Any) -> Machine:
    return machine(folders=[replace(HEALTHY_MACHINE.folders[0], **changes)])


def store(**changes: Any) -> Machine:
    return machine(store=replace(STORE, **changes))


def quota(seconds: float) -> Metrics:
    who = {"quota": "produce", "user": "", "client_id": "app"}
    return Metrics(
        "m",
        {
            "parley_client_quota_throttles_total": [(who, 10.0)],
            "parley_client_quota_throttle_seconds_total": [(who, seconds)],
        },
    )


def configured(*settings: dict[str, str], own: tuple[str, ...] = ()) -> Cluster:
    """Return the healthy cluster whose brokers have these settings. The last broker has set ``own`` at run time."""
    brokers = [replace(each, settings=found) for each, found in zip(BROKERS, settings, strict=True)]
    return cluster(brokers=[*brokers[:-1], replace(brokers[-1], own_settings=own)])


def outage(**changes: Any) -> Cluster:
    """Return a cluster whose brokers report that the coordination store does not respond."""
    ill = replace(metrics(), problems=[f"{PROBLEM_OF_STORE}: it has not responded for 20 s"])
    return cluster(brokers=[replace(each, metrics=ill) for each in BROKERS], **changes)


MOVE = Move("t", 0, (4,), (1,), {})
STANDS = {3: (ReplicaSize(10, 0), ReplicaSize(10, 0))}

EXAMPLES: dict[str, list[tuple[Cluster | Machine, str]]] = {
    "no-controller": [(cluster(controller=-1), "no broker is the controller")],
    "broker-down": [
        (cluster(brokers=BROKERS[:2]), "broker 3 is down; it holds replicas of 12 partitions"),
        (broker(is_fenced=True), "broker 1 is down"),
        (cluster(brokers=BROKERS[:1], partitions=[Partition("t", 0, 1, (1, 2), (1,))]), "1 of them with only one"),
    ],
    "broker-unreachable": [(broker(error="timed out"), "broker 1 at b1:9092 does not respond to this client")],
    "advertised-localhost": [
        (broker(host="localhost"), "broker 1 advertises localhost:9092"),
        (machine(advertised=[Advertised("PLAINTEXT", "me", 9092, ["127.0.1.1"])]), "listens for other machines"),
    ],
    "broker-unwell": [(broker(metrics=Metrics("m", {}, ["disk: failed"])), "broker 1 reports: disk: failed")],
    "partition-offline": [(partition(leader=-1), "no leader for 1 partition: reads and writes fail")],
    "isr-shrunk": [
        (partition(isr=(1, 2)), "broker 3 is missing from the ISR of 1 partition: it runs, but is behind"),
        (cluster(partitions=[Partition("t", 0, 1, (1, 4), (1,))]), "broker 4 is missing from the ISR of 1 partition"),
    ],
    "under-min-isr": [(replace(partition(isr=(1,)), min_isr={"t": 2}), "too few replicas of 1 partition are in sync")],
    "preferred-leader-not-leading": [(partition(leader=2), "the preferred leader of 1 partition does not lead")],
    "leader-skew": [
        (
            cluster(partitions=[replace(each, leader=1, replicas=(1, 2, 3)) for each in PARTITIONS]),
            "broker 1 leads 12 of 12 partitions",
        )
    ],
    "reassignment-stuck": [
        (cluster(moves=[MOVE]), "the reassignment of t-0 waits for broker 4, which is down"),
        (cluster(moves=[replace(MOVE, adding=(3,), copied=STANDS, whole=11)]), "has not advanced in 10 s"),
    ],
    "internal-topic-few-replicas": [
        (cluster(partitions=[Partition("__consumer_offsets", 0, 1, (1,), (1,))]), "has 1 replica, but could have 3")
    ],
    "topic-with-one-replica": [
        (cluster(partitions=[Partition("t", 0, 1, (1,), (1,))]), "1 topic with one replica: t"),
    ],
    "settings-differ": [
        (configured({"num.partitions": "3"}, {"num.partitions": "3"}, {"num.partitions": "1"}),
         "different values of 1 setting that should be the same on all: num.partitions"),
    ],
    "one-rack": [
        (
            cluster(brokers=[replace(each, rack="a" if each.id < 3 else "b") for each in BROKERS],
                    partitions=[Partition("t", 0, 1, (1, 2), (1, 2))]),
            "all replicas of 1 partition are in rack a",
        )
    ],
    "hosts-shared": [
        (
            cluster(brokers=[replace(each, host_label="m" if each.id < 3 else "n") for each in BROKERS],
                    partitions=[Partition("t", 0, 1, (1, 2), (1, 2))]),
            "1 partition with several replicas on one machine, although there are enough",
        )
    ],
    "hosts-too-few": [
        (
            cluster(brokers=[replace(each, host_label="m") for each in BROKERS]),
            "up to 3 replicas of a partition share a machine, because the brokers run on 1 machine: 12 partitions",
        )
    ],
    "racks-incomplete": [
        (cluster(brokers=[replace(each, rack="a") for each in BROKERS]), "all 3 brokers are in rack a"),
        (broker(rack=None), "brokers without a rack, while others have one: 1"),
    ],
    "versions-mixed": [(broker(apis={0: (0, 12)}), "the same release: broker 1 and broker 2, 3")],
    "features-not-finalized": [
        (cluster(brokers=[replace(each, finalized={"f": 1}) for each in BROKERS]), "features are not at the level")
    ],
    "group-stuck": [(group(sample(5, 9), sample(5, 9)), "nothing in 10 s, while it has a lag of 4 records")],
    "group-lag-growing": [
        (group(sample(5, 9), sample(6, 20)), "grows: from 4 to 14 records in 10 s; it has 1 member"),
        (group(sample(5, 9, members=0, state="Empty"), sample(5, 20, members=0, state="Empty")), "it has no members"),
    ],
    "group-rebalancing": [
        (group(sample(5, 5, state="PreparingRebalance"), sample(5, 5, state="Reconciling")), "and still was 10 s later")
    ],
    "hanging-transaction": [
        (cluster(hanging=[OpenTransaction("t", 0, 7, 3, PAST)]), "hangs in t-0: readers of committed records stop")
    ],
    "client-throttled": [(broker(metrics=quota(25.0)), "throttles client id app hard: 10 responses")],
    "uncleanable-log": [(broker(metrics=metrics(parley_uncleanable_partitions=1)), "cannot compact 1 log")],
    "disk-full": [
        (broker(directories=[Directory("/d", "", DISK, 0)]), "the disk of /d on broker 1 has 0 B free"),
        (folder(free=0), "the disk of /data has 0 B free"),
    ],
    "disk-nearly-full": [
        (broker(directories=[Directory("/d", "", DISK, DISK // 10)]), "10.0% of 1.0 TiB"),
        (folder(free=DISK // 10), "10.0% of 1.0 TiB"),
    ],
    "inodes-used-up": [(folder(inodes_free=1), "1 of 1,000 inodes free")],
    "log-directory-offline": [
        (broker(directories=[Directory("/d", "KAFKA_STORAGE_ERROR")]), "log directory /d of broker 1 is offline")
    ],
    "log-damaged": [
        (broker(metrics=metrics(parley_damaged_partitions=2)), "broker 1 has damaged records in 2 replicas"),
        (machine(damage=[Damage("/d/t-0/0.log", 5, "bad", is_tail=False)]), "is damaged at byte 5"),
        (machine(damage=[Damage("/d/t-0/0.log", 5, "bad", is_tail=True)]), "as after a crash"),
        (machine(damage=[Damage("/d/t-0", 0, "offsets 3 to 4 are missing", False, is_missing=True)]), "offsets 3 to 4"),
    ],
    "stray-logs": [
        (broker(metrics=metrics(parley_log_directory_stray_logs=6)), "6 stray logs without a topic on broker 1"),
        (folder(strays=["t-0.0-stray"]), "/data contains 1 stray log without a topic"),
    ],
    "log-directory-missing": [
        (replace(folder(exists=False, cluster_id=None), store=replace(STORE, registered={1: 1})),
         "broker 1 had 1 log directory, and /data is empty or does not exist"),
    ],
    "store-set-back": [
        (replace(folder(seen=Term(3, 1, 20)), store=replace(STORE, terms=[Term(2, 1, 9), Term(3, 1, 15)])),
         "was rolled back to an older state"),
    ],
    "clock-off": [
        (broker(metrics=replace(metrics(), clock_ahead_s=60.0)), "broker 1 is 60 s ahead of this machine's"),
        (store(clock_ahead_s=-60.0), "coordination store is 60 s behind this machine's"),
    ],
    "certificate-expired": [
        (cluster(certificates={"b1:9092": PAST}), "of b1:9092 has expired"),
        (machine(certificates=[Certificate("listener SSL", PAST)]), "of listener SSL has expired"),
    ],
    "certificate-expiring": [
        (cluster(certificates={"b1:9092": SOON}), "of b1:9092 expires in 3 days"),
        (machine(certificates=[Certificate("listener SSL", SOON)]), "expires in 3 days"),
    ],
    "key-store-unreadable": [(machine(certificates=[Certificate("listener SSL", None, "no file")]), "no file")],
    "descriptor-limit-low": [
        (broker(metrics=metrics(process_max_fds=1024, process_open_fds=1000)), "may open 1,024 files"),
        (machine(descriptors=256), "the limit of open files is 256; 1,024 are advised"),
    ],
    "config-invalid": [(machine(problems=[("log.dirs", "log.dirs is empty")]), "log.dirs is empty")],
    "config-unknown-key": [(machine(unknown=[("log.dir2", "log.dirs")]), "did you mean log.dirs?")],
    "config-without-effect": [(machine(ignored=[("jmx.port", "jmx.port has no effect")]), "no effect")],
    "port-taken": [
        (
            machine(listeners=[Listener("listeners", "PLAINTEXT", "", 9092, "in use", is_taken=True, holder=OTHER)]),
            "port 9092 of PLAINTEXT is taken by process 77 (nginx)",
        )
    ],
    "address-not-here": [
        (machine(listeners=[Listener("listeners", "PLAINTEXT", "b9", 9092, "not available")]), "cannot listen on b9")
    ],
    "advertised-unresolvable": [
        (machine(advertised=[Advertised("PLAINTEXT", "b9", 9092, error="unknown")]), "cannot resolve b9")
    ],
    "log-directory-unusable": [(folder(error="no permission"), "/data cannot be used: no permission")],
    "log-directory-locked": [(folder(holder=OTHER), "/data is locked by process 77 (nginx)")],
    "wrong-cluster-id": [
        (folder(cluster_id="c2"), "/data belongs to cluster c2, and the store to cluster c1"),
        (
            machine(store=None, folders=[FOLDER, replace(FOLDER, path="/d2", cluster_id="c2")]),
            "belong to different clusters: c1, c2",
        ),
    ],
    "wrong-broker-id": [
        (folder(broker_id=2), "/data belongs to broker 2, but the file belongs to broker 1"),
        (machine(broker_id=None, folders=[FOLDER, replace(FOLDER, broker_id=2)]), "belong to different brokers: 1, 2"),
    ],
    "identity-malformed": [(folder(malformed="it is malformed"), "it is malformed")],
    "duplicate-broker-id": [(store(members={1: ["elsewhere:9092"]}), "broker.id 1 is used by another broker")],
    "store-away": [
        (store(error="refused", kind_of_error="Unavailable"), "does not respond"),
        (cluster(store=replace(STORE, error="slow", kind_of_error="TimeoutError")), "does not respond"),
        (outage(), "does not respond to broker 1, 2, 3"),
    ],
    "store-slow": [(store(read_s=1.5), "takes 1.50 s for a read"), (cluster(store=replace(STORE, read_s=1.5)), "1.50")],
    "store-refuses": [
        (store(error="no", kind_of_error="Unauthorized"), "rejects this broker's account"),
        (cluster(store=replace(STORE, error="no", kind_of_error="Unauthorized")), "rejects"),
    ],
    "store-unusable": [
        (store(error="broken", kind_of_error="DamagedStore"), "cannot be used: broken"),
        (cluster(store=replace(STORE, error="broken", kind_of_error="DamagedStore")), "broken"),
    ],
    "store-empty": [(store(error="empty", kind_of_error="EmptyStore"), "is empty, and /data hold data of a cluster")],
    "wrong-store": [(store(identity="s2"), "/data belongs to the store s1")],
}  # fmt: skip


def test_nothing_is_wrong_with_healthy_subjects() -> None:
    for subject in (HEALTHY_CLUSTER, HEALTHY_MACHINE):
        found = diagnose(CHECKS, subject, "healthy")
        assert [(each.check.name, each.seen.text) for each in found.findings] == []
        assert exit_code(found) == HEALTHY


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_each_check_finds_its_examples(check: Check) -> None:
    kinds = set()
    for subject, text in EXAMPLES[check.name]:
        kinds.add(type(subject))
        (found,) = diagnose([check], subject, "ill").findings
        assert text in found.seen.text
        assert found.next
    assert (Cluster in kinds) == (check.in_cluster is not None)
    assert (Machine in kinds) == (check.on_machine is not None)


def test_names_are_unique_and_all_have_examples() -> None:
    names = [check.name for check in CHECKS]
    assert sorted(names) == sorted(EXAMPLES)


@pytest.mark.parametrize(
    ("subject", "names"),
    [
        (group(sample(5, 9), sample(9, 9)), []),
        (group(sample(5, 9, members=0), sample(5, 9, members=0)), []),
        (broker(metrics=quota(2.0)), []),
        (
            cluster(moves=[replace(MOVE, adding=(3,), copied={3: (ReplicaSize(9, 0), ReplicaSize(10, 0))}, whole=11)]),
            [],
        ),
        (cluster(moves=[replace(MOVE, adding=(3,), copied=STANDS, whole=10)]), []),
        (cluster(bootstrap=[("127.0.0.1", 9)], brokers=[replace(BROKERS[0], host="127.0.0.1")], partitions=[]), []),
        (machine(running=OTHER, listeners=[Listener("l", "P", "", 1, "used", is_taken=True, holder=OTHER)]), []),
        (folder(broker_id=None, cluster_id=None, store_identity=None), []),
        (store(members={1: ["b1:9092"]}), []),
        (store(registered={1: 1}), []),
        (
            cluster(partitions=[replace(each, leader=1) for each in PARTITIONS]),
            ["preferred-leader-not-leading"],  # and no leader-skew, which would have the same cause
        ),
        (replace(folder(seen=Term(3, 1, 15)), store=replace(STORE, terms=[Term(3, 1, 15)])), []),
        (cluster(partitions=[Partition("t", 0, 1, (1,), (1,))], min_isr={"t": 2}), ["topic-with-one-replica"]),
        (cluster(brokers=BROKERS[:1], partitions=[Partition("t", 0, 1, (1,), (1,))]), []),
        (configured({"num.partitions": "3", "broker.rack": "a"}, {"num.partitions": "3", "broker.rack": "b"}, {}), []),
        (store(error="empty", kind_of_error="EmptyStore"), ["store-empty"]),
    ],
)
def test_healthy_subjects_have_no_findings(subject: Cluster | Machine, names: list[str]) -> None:
    assert [each.check.name for each in diagnose(CHECKS, subject, "").findings] == names


def steps(name: str, subject: Cluster) -> list[str]:
    """Return what to do about a cluster's only finding of this name."""
    (found,) = (each for each in diagnose(CHECKS, subject, "").findings if each.check.name == name)
    return list(found.next)


def test_the_steps_about_different_settings_give_all_brokers_the_value_of_most() -> None:
    shared = {"default.replication.factor": "3", "num.partitions": "1", "min.insync.replicas": "2"}
    other = {"default.replication.factor": "1", "num.partitions": "2", "min.insync.replicas": "1"}
    alter = "parley configs --alter --entity-type brokers"
    in_file = (
        "set default.replication.factor=3, num.partitions=1 on broker 3, in its file or with --override, and restart it"
    )
    assert steps("settings-differ", configured(shared, shared, other)) == [
        f"{alter} --entity-default --add-config min.insync.replicas=2",
        in_file,
    ]
    own = configured(shared, shared, other, own=("min.insync.replicas",))
    assert steps("settings-differ", own)[0] == f"{alter} --entity-name 3 --delete-config min.insync.replicas"
    three = ({"num.partitions": text} for text in "123")
    assert steps("settings-differ", configured(*three)) == [
        "choose one value of num.partitions, and give it to all brokers"
    ]


def test_the_steps_about_partitions_without_a_leader_depend_on_the_replicas_left() -> None:
    dead = [*BROKERS[:2], replace(BROKERS[2], is_fenced=True)]
    lost = [Partition("t", 0, -1, (3,), (3,)), Partition("u", 1, -1, (3, 1), (3,))]
    start, elect, alone = steps("partition-offline", cluster(brokers=dead, partitions=lost))
    assert start == "start broker 3 with its disks (see broker-down)"
    assert elect.endswith(": parley elect-leaders --election-type unclean --topic u --partition 1")
    assert alone.startswith("if the disks are lost, no replica of t-0 is left. Start a broker with the same id on an")
    assert steps("partition-offline", cluster(brokers=dead, partitions=lost[:1])) == [start, alone]
    assert steps("partition-offline", partition(leader=-1))[0] == "start its brokers with their disks"
    found = diagnose(CHECKS, cluster(brokers=dead, partitions=lost), "").findings
    assert "topic-with-one-replica" not in [each.check.name for each in found]


def test_an_outage_of_the_store_is_one_finding_and_forbids_elections() -> None:
    moved = [replace(PARTITIONS[0], leader=2), *PARTITIONS[1:]]
    found = diagnose(CHECKS, outage(partitions=moved), "").findings
    assert [each.check.name for each in found] == ["store-away", "preferred-leader-not-leading"]
    assert found[0].seen.evidence[0] == "broker 1: it has not responded for 20 s"
    assert "no leader can be elected" in found[1].next[0]


def test_the_steps_about_few_replicas_name_the_topics() -> None:
    offsets = cluster(partitions=[Partition("__consumer_offsets", 0, 1, (1,), (1,))])
    assert steps("internal-topic-few-replicas", offsets)[0] == (
        "parley reassign --execute --topic __consumer_offsets --replication-factor 3"
    )
    two = cluster(partitions=[Partition(name, 0, 1, (1,), (1,)) for name in "ba"], brokers=BROKERS[:2])
    assert steps("topic-with-one-replica", two)[0] == (
        "parley reassign --execute --topic a --topic b --replication-factor 2"
    )


def test_the_exit_code_is_that_of_the_worst_finding() -> None:
    missing = [Missing(Part.STORE, "no response")]
    left_out = [Missing(Part.STORE, "not asked", has_failed=False)]
    for subject, code in (
        (partition(leader=-1), ERRORS),
        (partition(leader=2), WARNINGS),
        (cluster(missing=missing), INCOMPLETE),
        (cluster(missing=left_out), HEALTHY),
        (broker(rack=None), HEALTHY),
    ):
        assert exit_code(diagnose(CHECKS, subject, "")) == code


def test_the_text_is_grouped_and_the_worst_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnose(
        CHECKS, replace(partition(leader=-1), hanging=[OpenTransaction("u", 0, 7, 3, PAST)]), "the subject"
    )
    found = replace(found, missing=[Missing(Part.STORE, "no response")])
    lines = list(as_text(found))
    assert lines[0] == "the subject"
    assert lines[2] == "Errors"
    assert "    since  2029-12-29T00:00:00+00:00" in lines
    assert "    docs   docs/doctor.md#partition-offline" in lines
    assert lines[-4:] == ["Not examined", "  coordination store: no response", "", "2 errors, 0 warnings."]
    monkeypatch.setattr(colors, "_chosen", colors.When.ALWAYS)
    assert "\x1b[1;31mErrors\x1b[0m" in as_text(found)


def test_the_headline_counts_brokers_that_are_down() -> None:
    assert ": 3 brokers, 1 topic," in diagnosed(HEALTHY_CLUSTER).subject
    assert ": 2 brokers and 1 down, 1 topic," in diagnosed(cluster(brokers=BROKERS[:2])).subject


def test_severities_are_ordered() -> None:
    assert Severity.ERROR > Severity.WARNING > Severity.NOTE


def test_no_check_fails_on_a_snapshot_without_anything() -> None:
    for subject in (Cluster(NOW, [("b", 1)], None, 1, False, [], []), Machine(NOW, "b.properties")):
        assert diagnose(CHECKS, subject, "").findings == []
