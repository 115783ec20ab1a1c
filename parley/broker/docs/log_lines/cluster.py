"""Log lines about the cluster: the coordination store, the controller, topics, settings, and the process itself."""

from __future__ import annotations

from typing import Final

from parley.broker.docs.log_lines.line import DEFECT, NOTHING, Line, Section

_STORE: Final = Section(
    "Coordination store",
    (
        Line(
            "the coordination store does not respond",
            "The cluster cannot be changed until the store responds; producing and consuming continue. Repeated at "
            "growing intervals, with `for_s`.",
            "Start the store, or repair the network. Do not restart brokers, and do not change `coordination.url`.",
        ),
        Line(
            "retrying a metadata write",
            "The controller does not know whether the store has applied its write. Repeating the write is harmless.",
            "If it persists, the same as for a store that does not respond.",
        ),
        Line(
            "session with the coordination store lost",
            "The broker could not reach the store for longer than its session lasts. It joins again by itself.",
            "If it happens again: check whether the process stalls at times (memory, a suspended machine), and check "
            "the network to the store.",
        ),
        Line(
            "the coordination store has lost its latest changes: store.db-wal was deleted, or store.db replaced "
            "by an older copy",
            "The embedded store is older than the state that brokers have seen.",
            "Start all brokers, and recreate missing topics and settings. "
            "([details](coordination.md#a-store-that-was-rolled-back))",
        ),
        Line(
            "the coordination store was rolled back to an older state: the controller is taking a higher epoch",
            "The store was restored from a dump or a snapshot.",
            "Start all brokers with their data. ([details](coordination.md#a-store-that-was-rolled-back))",
        ),
        Line(
            "the coordination store was rolled back to an older state: each partition gets a leader when the replicas "
            "that may have its last records have reported their logs",
            "No acknowledged record is lost, but a partition waits for the slowest of these replicas. If one of them "
            "is missing, another line names its broker.",
            "Start all brokers with their data. ([details](coordination.md#a-store-that-was-rolled-back))",
        ),
        Line(
            "the coordination store was rolled back under this broker: opening it again",
            "The store was restored from a backup while this broker was running. The broker joins again by itself.",
            "Start all brokers with their data. ([details](coordination.md#a-store-that-was-rolled-back))",
        ),
        Line(
            "the coordination store was rolled back under the controller: the next term begins with what it contains",
            "The store was restored from a backup while the brokers were running. A controller is elected again.",
            "Start all brokers with their data. ([details](coordination.md#a-store-that-was-rolled-back))",
        ),
        Line(
            "a counter in the coordination store was below ids in use and has been raised",
            "The store was rolled back; ids would have been assigned twice.",
            NOTHING,
        ),
        Line(
            "the file store.latest cannot be used: lost writes will not be detected",
            "The embedded store remembers its latest state in this file; the `reason` says what is wrong with it.",
            "Repair the disk or the permissions of the folder.",
        ),
        Line(
            "process ... was stopped while it held the lock of ...; freed: ...",
            "A broker on this machine was suspended in the middle of a write to the embedded store. It was resumed "
            "briefly, so that other brokers can write.",
            "Find out what stops the process (Ctrl-Z, a debugger, a frozen control group).",
        ),
        Line(
            "process ... is stopped, holds the lock of ... and cannot be resumed: ...",
            "As above, but the process belongs to another user: no broker can write to the embedded store.",
            "Resume or end that process.",
        ),
        Line(
            "the store did not confirm the end of the session, which will expire",
            "The store did not respond while the broker was stopping.",
            "Nothing; the broker can start again when its session has expired.",
        ),
        Line(
            "the cluster has moved to another coordination store: switching to it",
            "The cluster now uses another store, and this broker switches to it.",
            "Change `coordination.url` of this broker when convenient, and keep the old store until then.",
        ),
        Line(
            "the new coordination store does not respond",
            "The cluster has moved to a store that this broker cannot reach, for the `reason`.",
            "Start that store, or repair the network to it.",
        ),
        Line(
            "the store to move to cannot be used",
            "This broker cannot use the store of a move that has been requested, so the move will be abandoned.",
            "Correct the address, or make the store reachable from every broker, and start the move again.",
        ),
        Line(
            "the cluster has not moved to another store",
            "See `reason`. The old store stays in charge.",
            "Fix the cause and start the move again. ([moving](moving-stores.md))",
        ),
        Line(
            "a move to another store was abandoned: the controller has changed",
            "The old store stays in charge.",
            "Start the move again.",
        ),
    ),
)

_CONTROLLER: Final = Section(
    "Controller and membership",
    (
        Line(
            "this broker lost the controller leadership",
            "This broker is no longer the controller, for the `reason`; the cluster elects a controller again.",
            "Nothing, if it is rare. Otherwise check the store and the load of this broker.",
        ),
        Line(
            "the metadata in the coordination store cannot be read: this broker cannot be the controller",
            "A value in the store is damaged, or a newer version of Parley has written it: see the `reason`. Without a "
            "controller, running brokers keep serving their clients, and brokers that start wait.",
            "Upgrade this broker if the `reason` says so. Otherwise restore the store from a backup "
            "([details](coordination.md#a-store-that-was-rolled-back)).",
        ),
        Line(
            "the controller failed and resigns",
            "An unexpected error; another broker becomes the controller.",
            DEFECT,
        ),
        Line(
            "a decision failed",
            "A change of the cluster was not carried out. Its client receives UNKNOWN_SERVER_ERROR.",
            DEFECT,
        ),
        Line(
            "a subscriber failed to apply a metadata change",
            "A part of this broker does not follow the cluster's metadata.",
            "Restart the broker. It is a defect in Parley: please report it.",
        ),
        Line(
            "failed to follow the metadata of the controller",
            "This broker currently does not follow the controller's changes. It retries.",
            DEFECT,
        ),
        Line(
            "the controller is dead: electing another one",
            "The controller's process has ended, or most brokers have not heard from it.",
            "Check that broker.",
        ),
        Line(
            "no controller can be elected",
            "See the `reason`; usually the store does not respond.",
            "Start the store, or repair the network to it.",
        ),
        Line(
            "broker fenced",
            "The controller considers a broker dead, for the `reason`, and elects other leaders.",
            "Check that broker, unless you stopped it.",
        ),
        Line(
            "the controller cannot reach a broker that is alive",
            "That broker refuses the controller's connections.",
            "Check the inter-broker listener (`inter.broker.listener.name`), firewalls, and the certificates.",
        ),
        Line(
            "could not register a broker: retrying",
            "An unexpected error in the controller; the broker does not serve clients until it is registered.",
            DEFECT,
        ),
        Line(
            "another broker with this id is a member: waiting until its session expires",
            "Two brokers have the same `broker.id`, or the earlier process of this broker has just died.",
            "Nothing, if the broker starts within seconds. Otherwise give one of the two another id.",
        ),
        Line(
            "the broker is no longer a member of the cluster",
            "The store was wiped, or rejects this broker, for the `reason`. The broker stops.",
            "Restore the store, or correct `coordination.url`. ([restore](operations.md#backup-restore-upgrade))",
        ),
        Line(
            "controlled shutdown failed: the broker stops without it",
            "Its partitions get new leaders only when the controller notices that the broker has stopped.",
            "Nothing, if the store or the controller was down. Otherwise check the log of the controller.",
        ),
        Line(
            "no data directory can store the epochs that this broker has seen: free some space, or repair the disk",
            "The broker records the highest epochs on its disks, to detect a store that was rolled back.",
            "Free some space, or repair the disk.",
        ),
        Line(
            "a file of known epochs is damaged",
            "The broker uses the copies in the other log directories, and writes the file again.",
            "Check the disk if it happens again.",
        ),
        Line(
            "joining before the broker epoch is on disk: if this broker dies now, its replicas count as lost",
            "No log directory could store the epoch, for the `reason`.",
            "Free some space, or repair the disk.",
        ),
    ),
)

_LEADERS: Final = Section(
    "Leaders",
    (
        Line(
            "leaders were elected from the reports of enough replicas, after an unclean stop or a store that was "
            "rolled back: by these reports, none lacks committed records",
            "After a crash of several brokers: all replicas that were last eligible have reported, and one of them is "
            "intact, on a machine that has not lost power. After the store was rolled back, a quorum of such replicas "
            "suffices, and with `min.insync.replicas=1` [one rare case](coordination.md#stored-epochs) is not covered.",
            NOTHING,
        ),
        Line(
            "leaders were elected after a power cut of all eligible replicas: acknowledged records that had not "
            "been synced may be missing",
            "The replicas with the longest logs lead; no disk contains more records. The line contains the number of "
            "partitions.",
            "Producers must send the last seconds before the power cut again. `flush.messages=1` rules this out. "
            "([leaders](operations.md#partitions-without-a-leader))",
        ),
        Line(
            "a leader was elected that may lack acknowledged records",
            "No eligible replica was intact, or all lost power and fewer than `min.insync.replicas` are intact. The "
            "line contains each replica's report, and how many records are known to be missing.",
            "Keep the disks of the other replicas, and compare. ([leaders](operations.md#partitions-without-a-leader))",
        ),
        Line(
            "more leaders were elected that may lack acknowledged records",
            "The line contains the number of further partitions.",
            "See [leaders](operations.md#partitions-without-a-leader).",
        ),
        Line(
            "partitions without a leader wait for brokers that may have their last records: start these brokers "
            "with their disks, or accept the loss with `parley elect-leaders --election-type unclean --topic TOPIC "
            "--partition N`",
            "A broker that was last eligible is down, or its log directory is offline. The line names the "
            "brokers and up to five topics, and is repeated while this lasts.",
            "Start it with its disks. Run the command only if they are lost.",
        ),
        Line(
            "partitions have no leader, and unclean.recovery.strategy=None forbids the controller to elect one: "
            "run `parley elect-leaders --election-type unclean --topic TOPIC --partition N`, or set another strategy",
            "No replica is eligible, and the strategy leaves the decision to you.",
            "Run the command for each partition, or set another strategy.",
        ),
    ),
)

_SETTINGS: Final = Section(
    "Settings and topics",
    (
        Line(
            "a setting is not used as it is written",
            "The `warning` names the key and the reason.",
            "Correct the file.",
        ),
        Line(
            "a dynamic setting has no effect or is unknown",
            "The `warning` names the setting and the reason.",
            "Remove the setting with `parley configs --alter --delete-config`.",
        ),
        Line(
            "a topic's setting has no effect",
            "The `warning` names the setting of the `topic` and the reason.",
            "Remove the setting.",
        ),
        Line(
            "the stored configuration is not allowed: this broker keeps its previous one",
            "Another version of Parley stored a dynamic setting that this version rejects.",
            "Correct the key that `problems` names.",
        ),
        Line(
            "the console has ended and will be restarted",
            "The process of `console.listener` has ended, for the `reason`; `after_s` is the pause before the next "
            "start. The broker is not affected.",
            "Correct what the reason names: another program may use the address, or a file cannot be read.",
        ),
        Line(
            "the samples cannot be saved in ...: ...",
            "The console cannot use its file of samples. Its charts work, but are empty after its next start.",
            "Correct the permissions or the space of the folder, or remove the file if it is damaged, and restart the "
            "console. `--data-dir` names another folder.",
        ),
        Line(
            "ignoring a malformed note about a recovery",
            "A broker of another version opens its logs, and its progress is not shown. It is not affected.",
            NOTHING,
        ),
        Line(
            "a stored password cannot be decrypted: it was set with another password.encoder.secret",
            "The setting `key` of the `broker` is not used.",
            "Give the broker the earlier secret as `password.encoder.old.secret`, or set the password again.",
        ),
        Line(
            "cannot create an internal topic: its coordinators are unavailable until it exists; if there are fewer "
            "brokers than the replication factor, set that key to the number of brokers",
            "Groups, transactions or share groups do not work. Repeated at growing intervals.",
            "Lower the `key` of the line; lower `transaction.state.log.min.isr` and "
            "`share.coordinator.state.topic.min.isr`, too. Or start more brokers.",
        ),
        Line(
            "the new cluster adopted the topics found on disk; their settings are not on disk, so they keep all "
            "records (retention.ms=-1) until you set them with `parley configs`",
            "The log directories contained data, but the store was empty.",
            "Set the topics' settings again.",
        ),
        Line(
            "not adopting logs on disk: partitions are missing, or belong to different topics",
            "A new cluster found only parts of the `topic`, or logs of two topics with this name.",
            "Restore the missing folders and start over with an empty store, or remove the logs.",
        ),
    ),
)

_PROCESS: Final = Section(
    "The process",
    (
        Line(
            "the process has run out of a resource and is using its reserve",
            "`resource` names it: file descriptors or memory; `shortages` counts the operations that failed for lack "
            "of this resource.",
            "Raise the limit, or close connections. "
            "([shortages](operations.md#when-file-descriptors-or-memory-run-out))",
        ),
        Line(
            "the limit of open files is too low for the partitions of this broker: raise it (ulimit -n, "
            "LimitNOFILE); until then their files are constantly closed and reopened",
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
            "a task ended for lack of memory or file descriptors",
            "An operation that was in progress when memory or file descriptors ran out.",
            "Raise the limit.",
        ),
        Line(
            "a callback ended for lack of memory or file descriptors",
            "An operation that was in progress when memory or file descriptors ran out.",
            "Raise the limit.",
        ),
        Line(
            "the log was not read fast enough: lines were dropped",
            "The line contains the number of missing lines.",
            "Make the program that reads standard error read faster, or raise `logging.level`.",
        ),
        Line(
            "task failed",
            "A part of the broker has ended, and no longer does its work.",
            DEFECT,
        ),
        Line(
            "a delayed response failed",
            "A client gets no response to one request, and sends it again.",
            DEFECT,
        ),
        Line(
            "a metric cannot be read and is left out",
            "The scrape contains the other metrics.",
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
            "An unexpected error; the traceback shows where.",
            DEFECT,
        ),
    ),
)

SECTIONS: Final = (_STORE, _CONTROLLER, _LEADERS, _SETTINGS, _PROCESS)
