"""The table of checks: the question of each, the facts it needs, and what to do about its findings.

The page docs/doctor.md is generated from this table. Names never change, because scripts and alerts use them.
"""

from __future__ import annotations

from typing import Final

from parley.tools.doctor import client_checks as clients
from parley.tools.doctor import machine_checks as machine
from parley.tools.doctor import replica_checks as replicas
from parley.tools.doctor import resource_checks as resources
from parley.tools.doctor import settings_checks as settings
from parley.tools.doctor import store_checks as stores
from parley.tools.doctor.facts import Part
from parley.tools.doctor.findings import Check, Severity

_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE
_FILE, _MACHINE, _STORE = (Part.FILE,), (Part.MACHINE,), (Part.STORE,)
_METADATA, _METRICS = (Part.METADATA,), (Part.METRICS,)

_CLUSTER: Final = (
    Check(
        "no-controller", _E, "Is the cluster without a controller?",
        (
            "parley coordination status --config broker.properties, or with the store's URL if there is no file",
            "parley doctor broker.properties",
        ),
        _METADATA, replicas.no_controller,
    ),
    Check(
        "broker-down", _E, "Is a broker with replicas down?",
        (
            "parley doctor broker.properties, on its machine",
            "parley start broker.properties, or with its --override options if it has no file: parley start --brokers "
            "shows them when a broker ends",
        ),
        _METADATA, replicas.down,
    ),
    Check(
        "broker-unreachable", _E, "Is a running broker unreachable at its advertised address?",
        ("correct advertised.listeners of the broker, or the network between this client and the address",),
        (Part.BROKERS,), replicas.silent,
    ),
    Check(
        "advertised-localhost", _E, "Does a broker advertise localhost to other machines?",
        ("set advertised.listeners to an address that clients reach, and restart the broker",),
        _METADATA, replicas.localhost, machine.local_to_others,
    ),
    Check(
        "broker-unwell", _E, "Does a broker report a problem?",
        ("read the broker's log: docs/operations.md explains its lines",),
        _METRICS, replicas.sick, of_parley=True,
    ),
    Check(
        "partition-offline", _E, "Is a partition without a leader?",
        (
            "start its brokers with their disks",
            "if their disks are lost and another replica runs, accept that records are lost: parley elect-leaders "
            "--election-type unclean --topic TOPIC --partition N",
            "if no replica is left: start a broker with the id of the lost one on an empty folder. The partition then "
            "begins empty. Or delete and create the topic",
        ),
        _METADATA, replicas.offline,
    ),
    Check(
        "isr-shrunk", _W, "Is a replica out of sync, and on which broker?",
        ("parley topics --describe --under-replicated-partitions", "read the log and the load of the broker named"),
        _METADATA, replicas.shrunk,
    ),
    Check(
        "under-min-isr", _E, "Do partitions reject writes with acks=all?",
        ("parley topics --describe --under-min-isr-partitions", "bring back the brokers that isr-shrunk names"),
        (Part.METADATA, Part.CONFIGS), replicas.under_min_isr,
    ),
    Check(
        "preferred-leader-not-leading", _W, "Are partitions not led by their preferred leader?",
        (
            "nothing, if a broker has just returned: leaders return within leader.imbalance.check.interval.seconds",
            "parley elect-leaders --election-type preferred --all-topic-partitions",
        ),
        _METADATA, replicas.not_preferred,
    ),
    Check(
        "leader-skew", _W, "Does a broker lead much more than its share?",
        ("parley balance --plan", "parley balance --execute"),
        _METADATA, replicas.skewed,
    ),
    Check(
        "reassignment-stuck", _W, "Is a reassignment making no progress?",
        (
            "parley reassign --list",
            "start the broker that it waits for, raise the throttle, or cancel it: parley reassign --cancel",
        ),
        (Part.MOVES,), replicas.stuck_moves,
    ),
    Check(
        "internal-topic-few-replicas", _W, "Does an internal topic have too few replicas?",
        (
            "parley reassign --execute --topic __consumer_offsets --replication-factor 3",
            "parley reassign --list, until it lists none of these",
        ),
        _METADATA, replicas.low_factor,
    ),
    Check(
        "topic-with-one-replica", _N, "Does a topic have one replica, although there are several brokers?",
        (
            "parley reassign --execute --topic TOPIC --replication-factor 3",
            "parley reassign --list, until it lists none of these",
        ),
        _METADATA, replicas.single_replicas,
    ),
    Check(
        "settings-differ", _W, "Do brokers have different values of a setting that applies to the whole cluster?",
        (
            "set the same value in the files of all brokers, and restart those whose value was changed",
            "parley configs --alter --entity-type brokers --entity-default --add-config KEY=VALUE, if the key can be "
            "changed at run time",
        ),
        (Part.CONFIGS,), settings.different,
    ),
    Check(
        "one-rack", _W, "Are all replicas of a partition in one rack?",
        ("parley balance --plan", "parley balance --execute"),
        _METADATA, replicas.one_rack,
    ),
    Check(
        "racks-incomplete", _N, "Do all brokers have the same rack, or do some have none?",
        ("set broker.rack of each broker to its failure domain, such as its rack or zone",),
        _METADATA, replicas.without_racks,
    ),
    Check(
        "hosts-shared", _W, "Do replicas of a partition share a machine, although there are enough machines?",
        ("parley balance --plan", "parley balance --execute"),
        _METADATA, replicas.shared_hosts, of_parley=True,
    ),
    Check(
        "hosts-too-few", _N, "Do replicas of a partition share a machine, because there are too few machines?",
        (
            "nothing, if the cluster is for development: the loss of the machine loses all replicas on it",
            "otherwise start brokers on other machines, then parley balance --execute",
        ),
        _METADATA, replicas.few_hosts, of_parley=True,
    ),
    Check(
        "versions-mixed", _W, "Do the brokers run different releases?",
        ("finish the upgrade: restart the older brokers with the new release, one at a time",),
        (Part.BROKERS,), replicas.mixed_versions,
    ),
    Check(
        "features-not-finalized", _N, "Are features below the level that all brokers support?",
        ("parley features describe",),
        (Part.BROKERS,), replicas.not_finalized,
    ),
    Check(
        "group-stuck", _E, "Does a group with members commit nothing?",
        ("parley groups --describe --group GROUP --members", "check the log and the thread stacks of its members"),
        (Part.GROUPS,), clients.stuck_groups,
    ),
    Check(
        "group-lag-growing", _W, "Does a group fall behind?",
        ("parley groups --describe --group GROUP", "add members, up to one for each partition, or make them faster"),
        (Part.GROUPS,), clients.growing_groups,
    ),
    Check(
        "group-rebalancing", _W, "Is a group rebalancing constantly?",
        ("raise max.poll.interval.ms of its members, or have them process fewer records for each poll",),
        (Part.GROUPS,), clients.rebalancing_groups,
    ),
    Check(
        "hanging-transaction", _E, "Does a transaction block readers of committed records forever?",
        ("parley transactions find-hanging --topic TOPIC",),
        (Part.TRANSACTIONS,), clients.hanging,
    ),
    Check(
        "client-throttled", _W, "Does a quota throttle a client hard?",
        ("parley configs --describe --entity-type clients --all", "raise the quota, or make the client send less"),
        _METRICS, clients.throttled, of_parley=True,
    ),
    Check(
        "uncleanable-log", _E, "Are there logs that cannot be compacted?",
        ("see 'a log cannot be compacted' in the broker's log", "fix the cause and restart the broker"),
        _METRICS, resources.uncleanable, of_parley=True,
    ),
)  # fmt: skip
_BOTH: Final = (
    Check(
        "disk-full", _E, "Is a disk full?",
        (
            "first free space by deleting other files on the disk: a broker cannot delete from an offline directory",
            "parley configs --alter --entity-type topics --entity-name TOPIC --add-config retention.bytes=BYTES",
            "parley balance --plan, to move replicas to other brokers",
        ),
        (Part.LOG_DIRS,), resources.full, resources.full_folder,
    ),
    Check(
        "disk-nearly-full", _W, "Is a disk nearly full?",
        (
            "parley configs --alter --entity-type topics --entity-name TOPIC --add-config retention.bytes=BYTES",
            "parley balance --plan, to move replicas to other brokers",
        ),
        (Part.LOG_DIRS,), resources.nearly_full, resources.nearly_full_folder,
    ),
    Check(
        "inodes-used-up", _E, "Is a file system running out of inodes?",
        ("delete small files on the file system, or move the log directory to one with more inodes",),
        _MACHINE, on_machine=resources.few_inodes,
    ),
    Check(
        "log-directory-offline", _E, "Has a log directory failed?",
        ("repair or replace the disk, then restart the broker (docs/operations.md)",),
        (Part.LOG_DIRS,), resources.offline_directory,
    ),
    Check(
        "log-damaged", _E, "Are records damaged?",
        (
            "start the broker and those of the other replicas: it fetches damaged and missing records (docs/damage.md)",
            "parley log-dirs --verify, while the brokers run",
        ),
        (Part.METRICS, Part.MACHINE), resources.damaged, resources.damaged_file, of_parley=True,
    ),
    Check(
        "stray-logs", _W, "Are there logs on the disks that belong to no topic?",
        (
            "if the records are needed: docs/coordination.md#records-in-stray-folders",
            "otherwise remove the folders whose names end in -stray on the broker's machine",
        ),
        (Part.METRICS, Part.MACHINE), resources.strays, resources.strays_in_folders, of_parley=True,
    ),
    Check(
        "clock-off", _W, "Do clocks differ?",
        ("timedatectl, on each machine", "run chrony or another NTP client on each machine"),
        (Part.METRICS, Part.STORE), resources.cluster_clocks, resources.machine_clock, of_parley=True,
    ),
    Check(
        "certificate-expired", _E, "Has a certificate expired?",
        ("replace the file of ssl.keystore.location: brokers reload it within seconds",),
        (Part.CERTIFICATES,), resources.expired, resources.expired_file,
    ),
    Check(
        "certificate-expiring", _W, "Does a certificate expire within 30 days?",
        ("replace the file of ssl.keystore.location: brokers reload it within seconds",),
        (Part.CERTIFICATES,), resources.expiring, resources.expiring_file,
    ),
    Check(
        "key-store-unreadable", _E, "Are the keys of a listener unusable?",
        ("correct ssl.keystore.location and its password, and the permissions of the file",),
        _FILE, on_machine=resources.unreadable_keys,
    ),
    Check(
        "descriptor-limit-low", _W, "Is the limit of open files too low for the broker's partitions?",
        ("raise LimitNOFILE of its systemd unit, or ulimit -n, and restart the broker",),
        (Part.METRICS, Part.MACHINE), resources.few_descriptors_left, resources.low_limit,
    ),
)  # fmt: skip
_MACHINES: Final = (
    Check(
        "config-invalid", _E, "Are there settings that prevent the broker from starting?",
        ("correct the setting: docs/configuration.md lists the allowed values",),
        _FILE, on_machine=machine.contradictory,
    ),
    Check(
        "config-unknown-key", _W, "Are there unknown settings, such as misspelled ones?",
        ("remove the setting from the file",),
        _FILE, on_machine=machine.unknown,
    ),
    Check(
        "config-without-effect", _N, "Are there settings that only Apache Kafka uses?",
        ("remove the setting, or leave it: it is harmless",),
        _FILE, on_machine=machine.ignored,
    ),
    Check(
        "port-taken", _E, "Is a port of the broker in use by another process?",
        ("stop that process, or choose another port",),
        _MACHINE, on_machine=machine.taken,
    ),
    Check(
        "address-not-here", _E, "Is there an address that the broker cannot listen on?",
        ("listen on an address of this machine; put the names for clients into advertised.listeners",),
        _MACHINE, on_machine=machine.cannot_bind,
    ),
    Check(
        "advertised-unresolvable", _W, "Is there an advertised name that does not resolve?",
        ("correct advertised.listeners, or the name resolution of this machine",),
        _MACHINE, on_machine=machine.unresolvable,
    ),
    Check(
        "log-directory-unusable", _E, "Is there a log directory that the broker cannot use?",
        ("correct log.dirs, or the owner and the permissions of the folder",),
        _MACHINE, on_machine=machine.unusable,
    ),
    Check(
        "log-directory-locked", _E, "Is a log directory locked by another process?",
        ("stop that process, or name another folder in log.dirs",),
        _MACHINE, on_machine=machine.locked,
    ),
    Check(
        "log-directory-missing", _E, "Are log directories missing that the broker had before?",
        (
            "mount the disk, or correct log.dirs, before you start the broker",
            "if the disk is lost: start the broker, which fetches its replicas from other brokers",
        ),
        (Part.MACHINE, Part.STORE), on_machine=machine.missing_directories,
    ),
    Check(
        "wrong-cluster-id", _E, "Does a log directory belong to another cluster?",
        ("correct log.dirs or coordination.url", "or empty the directory, which discards its data"),
        (Part.MACHINE, Part.STORE), on_machine=machine.other_cluster,
    ),
    Check(
        "wrong-broker-id", _E, "Does a log directory belong to another broker?",
        ("correct broker.id or log.dirs",),
        _MACHINE, on_machine=machine.other_broker,
    ),
    Check(
        "identity-malformed", _E, "Is a meta.properties file unreadable or altered?",
        (
            "restore the file from a backup",
            "if you have edited it, remove the comment with the checksum, its last line",
        ),
        _MACHINE, on_machine=machine.malformed_owner,
    ),
    Check(
        "duplicate-broker-id", _E, "Does another broker have this broker's id?",
        ("give this broker another id, or stop the other one",),
        _STORE, on_machine=machine.duplicate_id,
    ),
)  # fmt: skip
_STORES: Final = (
    Check(
        "store-away", _E, "Is the coordination store unreachable?",
        (
            "start the store, or repair the network to it; do not change the address",
            "parley coordination status --config broker.properties, or with the store's URL if there is no file",
        ),
        (Part.METRICS, Part.STORE), stores.away, stores.away, of_parley=True,
    ),
    Check(
        "store-slow", _W, "Is the coordination store slow?",
        ("check the disks, the load and the network of the store's servers", "parley coordination check URL"),
        _STORE, stores.slow, stores.slow, of_parley=True,
    ),
    Check(
        "store-refuses", _E, "Does the coordination store reject the broker's account?",
        ("correct the account in coordination.url, or its permissions (docs/stores.md)",),
        _STORE, stores.refuses, stores.refuses, of_parley=True,
    ),
    Check(
        "store-unusable", _E, "Is the coordination store damaged, or its address wrong?",
        ("restore it from a backup, or correct coordination.url (docs/coordination.md)",),
        _STORE, stores.unusable, stores.unusable, of_parley=True,
    ),
    Check(
        "store-empty", _E, "Is the coordination store empty although the disks hold data?",
        ("correct coordination.url, or restore the store: parley coordination restore BACKUP URL",),
        _STORE, on_machine=stores.empty,
    ),
    Check(
        "store-set-back", _E, "Was the coordination store rolled back to an older state?",
        (
            "if that was not intended, restore the newer state before you start a broker",
            "otherwise start all brokers with their disks: docs/coordination.md#a-store-that-was-rolled-back",
        ),
        (Part.MACHINE, Part.STORE), on_machine=stores.rolled_back,
    ),
    Check(
        "wrong-store", _E, "Do the log directories belong to another coordination store?",
        ("correct coordination.url; if the store was restored, see docs/coordination.md",),
        _STORE, on_machine=stores.other_store,
    ),
)  # fmt: skip

CHECKS: Final = (*_CLUSTER, *_BOTH, *_MACHINES, *_STORES)
