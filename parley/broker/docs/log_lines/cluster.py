"""Log lines about the cluster: the coordination store, the controller, topics, settings, and the process itself."""

from __future__ import annotations

from typing import Final

from parley.broker.docs.log_lines.line import DEFECT, NOTHING, Line, Section

_STORE: Final = Section(
    "Coordination store",
    (
        Line(
            "the coordination store does not respond",
            "Nothing in the cluster can be changed until it responds; producing and consuming continue. Repeated "
            "at growing intervals, with `for_s`.",
            "Start the store, or repair the network. Do not restart brokers, and do not change `coordination.url`.",
        ),
        Line(
            "retrying a metadata write",
            "The controller does not know whether the store has its write; to repeat it is harmless.",
            "As for a store that does not respond, if it lasts.",
        ),
        Line(
            "session with the coordination store lost",
            "The broker could not reach the store for longer than its session lasts. It joins again by itself.",
            "If it happens again: look for a process that stands still at times (memory, a suspended machine), "
            "or for the network to the store.",
        ),
        Line(
            "the coordination store has lost its latest changes: store.db-wal was deleted, or store.db replaced "
            "by an older copy",
            "The embedded store is older than what brokers have seen of it.",
            "Start all brokers; create topics and settings that are missing again. "
            "([details](coordination.md#a-store-that-was-set-back))",
        ),
        Line(
            "the coordination store was restored to an older state: the controller takes a higher epoch",
            "The store was restored from a dump or a snapshot.",
            "Start all brokers with their data. ([details](coordination.md#a-store-that-was-set-back))",
        ),
        Line(
            "the coordination store was set back to an older state: each partition gets a leader when all its "
            "replicas have reported their logs",
            "No acknowledged record is lost, but a partition waits for the slowest of its brokers.",
            "Start all brokers with their data. ([details](coordination.md#a-store-that-was-set-back))",
        ),
        Line(
            "a counter in the coordination store was below ids in use and has been raised",
            "The store was restored to an older state; ids would have been given out twice.",
            NOTHING,
        ),
        Line(
            "the file store.latest cannot be used: lost writes will not be detected",
            "The embedded store remembers its latest state in this file; the `reason` says what is wrong with it.",
            "Repair the disk or the rights of the folder.",
        ),
        Line(
            "process ... was stopped while it held the lock of ...; freed: ...",
            "A broker of this machine was suspended in the middle of a write to the embedded store. It was "
            "resumed for a moment, so that others can write.",
            "Find out what stops the process (Ctrl-Z, a debugger, a frozen control group).",
        ),
        Line(
            "process ... is stopped, holds the lock of ... and cannot be resumed: ...",
            "As above, but the process belongs to another user: no broker can write to the embedded store.",
            "Resume or end that process.",
        ),
        Line(
            "the store did not confirm the end of the session, which will expire",
            "The store did not respond while the broker stopped.",
            "Nothing; the broker can start again when its session has expired.",
        ),
        Line(
            "the cluster has moved to another coordination store: switching to it",
            "The cluster uses another store from now on; this broker follows.",
            "Change `coordination.url` of this broker when convenient, and keep the old store until then.",
        ),
        Line(
            "the new coordination store does not respond",
            "The cluster has moved to a store that this broker cannot reach, for the `reason`.",
            "Start that store, or repair the network to it.",
        ),
        Line(
            "the store to move to cannot be used",
            "This broker cannot use the store of a move that has been requested, so the move will be given up.",
            "Correct the address, or let every broker reach the store, and begin the move again.",
        ),
        Line(
            "the cluster has not moved to another store",
            "For the `reason`; the old store stays in charge.",
            "Remove the reason and begin the move again. ([moving](moving-stores.md))",
        ),
        Line(
            "a move to another store was abandoned: the controller has changed",
            "The old store stays in charge.",
            "Begin the move again.",
        ),
    ),
)

_CONTROLLER: Final = Section(
    "Controller and membership",
    (
        Line(
            "this broker lost the controller leadership",
            "This broker is no longer the controller, for the `reason`; the cluster elects a controller again.",
            "Nothing, if it is rare. Else look at the store and at the load of this broker.",
        ),
        Line(
            "the controller failed and resigns",
            "An unexpected error; another broker becomes the controller.",
            DEFECT,
        ),
        Line(
            "a decision failed",
            "A change of the cluster was not made; its client gets UNKNOWN_SERVER_ERROR.",
            DEFECT,
        ),
        Line(
            "a subscriber failed to apply a metadata change",
            "A part of this broker does not follow the cluster's metadata.",
            "Restart the broker. It is a defect in Parley: please report it.",
        ),
        Line(
            "failed to follow the metadata of the controller",
            "This broker does not follow the controller's changes at the moment; it tries again.",
            DEFECT,
        ),
        Line(
            "the controller is dead: electing another one",
            "The controller's process has ended, or most brokers have not heard from it.",
            "Look at that broker.",
        ),
        Line(
            "no controller can be elected",
            "The `reason` says why, usually that the store does not respond.",
            "Start the store, or repair the network to it.",
        ),
        Line(
            "broker fenced",
            "The controller takes a broker for dead, for the `reason`, and elects other leaders.",
            "Look at that broker, unless you stopped it.",
        ),
        Line(
            "the controller cannot reach a broker that is alive",
            "It refuses the controller's connections.",
            "Look at the listener between brokers (`inter.broker.listener.name`), a firewall, and the certificates.",
        ),
        Line(
            "could not register a broker: retrying",
            "An unexpected error in the controller; the broker does not serve clients until it is registered.",
            DEFECT,
        ),
        Line(
            "another broker with this id is registered: waiting until its session expires",
            "Two brokers have the same `broker.id`, or the earlier process of this broker has just died.",
            "Nothing, if the broker starts within seconds. Else give one of the two another id.",
        ),
        Line(
            "the broker is no longer a member of the cluster",
            "The store was wiped, or refuses this broker, for the `reason`; the broker stops.",
            "Restore the store, or correct `coordination.url`. ([restore](operations.md#backup-restore-upgrade))",
        ),
        Line(
            "controlled shutdown failed: the broker stops without it",
            "Its partitions get new leaders only when the controller notices that the broker is gone.",
            "Nothing, if the store or the controller was down. Else look at the log of the controller.",
        ),
        Line(
            "no data directory can store the epochs that this broker has seen: free some space, or repair the disk",
            "The broker notes the highest epochs on its disks, to notice a store that was set back.",
            "Make room, or repair the disk.",
        ),
        Line(
            "a file of known epochs is damaged",
            "It is written again; the copies in the other log directories are used.",
            "Check the disk if it happens again.",
        ),
        Line(
            "joining before the broker epoch is on disk: if this broker dies now, its replicas count as lost",
            "No log directory took the epoch, for the `reason`.",
            "Make room, or repair the disk.",
        ),
    ),
)

_LEADERS: Final = Section(
    "Leaders",
    (
        Line(
            "leaders were elected from the reports of all replicas, after an unclean stop or a store that was set "
            "back: none lacks committed records",
            "After a power cut or a crash of several brokers: a replica that was eligible last is intact.",
            NOTHING,
        ),
        Line(
            "a leader was elected that may lack acknowledged records",
            "No eligible replica was intact. The line has each replica's report, and how many records are known "
            "to be missing.",
            "Keep the disks of the other replicas, and compare. ([leaders](operations.md#partitions-without-a-leader))",
        ),
        Line(
            "more leaders were elected that may lack acknowledged records",
            "As many more than were named.",
            "See [leaders](operations.md#partitions-without-a-leader).",
        ),
        Line(
            "partitions without a leader wait for brokers that may have their last records: start these brokers "
            "with their disks, or accept the loss with `parley elect-leaders --election-type unclean`",
            "A broker that was eligible last is down, or its log directory is offline. The line names the "
            "brokers and up to five topics, and is repeated while this lasts.",
            "Start it with its disks. If they are lost, run `parley elect-leaders --election-type unclean`.",
        ),
        Line(
            "partitions have no leader, and unclean.recovery.strategy=None forbids the controller to elect one: "
            "run `parley elect-leaders --election-type unclean`, or set another strategy",
            "No replica is eligible, and only you may decide.",
            "Run `parley elect-leaders --election-type unclean`, or set another strategy.",
        ),
    ),
)

_SETTINGS: Final = Section(
    "Settings and topics",
    (
        Line(
            "a setting is not used as it is written",
            "The `warning` says which key, and why.",
            "Correct the file.",
        ),
        Line(
            "configuration",
            "A dynamic setting has no effect or is unknown; the `warning` explains it.",
            "Remove the setting with `parley configs --alter --delete-config`.",
        ),
        Line(
            "configuration of a topic",
            "A setting of the `topic` has no effect here; the `warning` explains it.",
            "Remove the setting, if it was meant to have one.",
        ),
        Line(
            "the stored configuration is not allowed: this broker keeps its previous one",
            "Another version of Parley stored a dynamic setting that this one refuses.",
            "Correct the key that `problems` names.",
        ),
        Line(
            "a stored password cannot be decrypted: it was set with another password.encoder.secret",
            "The setting `key` of the `broker` is not used.",
            "Give the broker the earlier secret as `password.encoder.old.secret`, or set the password again.",
        ),
        Line(
            "cannot create an internal topic: its coordinators are unavailable until it exists; with fewer brokers "
            "than the replication factor set that key to the number of brokers",
            "Groups, transactions or share groups do not work. Repeated at growing intervals.",
            "Lower the `key` of the line; lower `transaction.state.log.min.isr` and "
            "`share.coordinator.state.topic.min.isr`, too. Or start more brokers.",
        ),
        Line(
            "the new cluster adopted the topics found on disk; their settings are not on disk, so they keep all "
            "records (retention.ms=-1) until you set them with `parley configs`",
            "There was data and the store was empty.",
            "Set the topics' settings again.",
        ),
        Line(
            "not adopting logs on disk: partitions are missing, or belong to different topics",
            "A new cluster found parts of the `topic` only, or logs of two topics with this name.",
            "Put the missing folders back and begin again with an empty store, or remove the logs.",
        ),
    ),
)

_PROCESS: Final = Section(
    "The process",
    (
        Line(
            "the process has run out of a resource and is using its reserve",
            "`resource` names it: file descriptors or memory; `shortages` counts the operations that failed for "
            "lack of it.",
            "Raise the limit, or close connections. "
            "([shortages](operations.md#when-file-descriptors-or-memory-run-out))",
        ),
        Line(
            "the limit of open files is too low for the partitions of this broker: raise it (ulimit -n, "
            "LimitNOFILE); until then their files are closed and reopened all the time",
            "This costs time.",
            "Raise it to the `advised` limit.",
        ),
        Line(
            "the broker is handing over its leaderships and shutting down",
            "A shortage lasted for `coordination.session.timeout.ms`, or memory ran out in the middle of some "
            "work. The exit code is 75.",
            "Raise the limit, then start the broker.",
        ),
        Line(
            "a shortage ended a task",
            "What the broker was doing when memory or files ran out.",
            "Raise the limit.",
        ),
        Line(
            "a shortage ended a callback",
            "What the broker was doing when memory or files ran out.",
            "Raise the limit.",
        ),
        Line(
            "the log was not read fast enough: lines were dropped",
            "As many as the line says are missing.",
            "Let the program that reads standard error read faster, or raise `logging.level`.",
        ),
        Line(
            "task failed",
            "A part of the broker has ended; what it did is not done any more.",
            DEFECT,
        ),
        Line(
            "a delayed response failed",
            "A client gets no response to one request, and sends it again.",
            DEFECT,
        ),
        Line(
            "a metric cannot be read and is left out",
            "The scrape has the others.",
            DEFECT,
        ),
        Line(
            "the metrics could not be collected",
            "A scrape failed.",
            DEFECT,
        ),
        Line(
            "a connection to the metrics listener failed",
            "A scrape failed.",
            DEFECT,
        ),
        Line(
            "the start failed",
            "In a way that Parley does not know; the traceback says where.",
            DEFECT,
        ),
    ),
)

SECTIONS: Final = (_STORE, _CONTROLLER, _LEADERS, _SETTINGS, _PROCESS)
