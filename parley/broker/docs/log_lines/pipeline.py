"""Log lines of the programs other than the broker: connect, the schema registry, mirror, load, Spark, check."""

from __future__ import annotations

from typing import Final

from parley.broker.docs.log_lines.line import DEFECT, NOTHING, Line, Section

_CONNECT: Final = Section(
    "Connect",
    (
        Line(
            "Connector ... failed.",
            "The traceback says why; it stays stopped.",
            "Mend it, and restart it by REST.",
        ),
        Line(
            "Task ... failed. It stays stopped until it is restarted: ...",
            "A task of `parley connect standalone`.",
            "Remove the reason, and restart the task by REST.",
        ),
        Line(
            "... ... has failed: ...",
            "A task or a connector of `parley connect distributed`, with its traceback.",
            "Remove the reason, and restart the task by REST.",
        ),
        Line(
            "Stopping connector ... failed: ...",
            "The worker forgets the connector.",
            "Mend the connector.",
        ),
        Line(
            "Task ... did not stop cleanly: ...",
            "The worker forgets the task.",
            "Mend the connector.",
        ),
        Line(
            "... failed while it stopped: ...",
            "The worker forgets the task or connector.",
            "Mend the connector.",
        ),
        Line(
            "Task ... did not stop within ... ms and is abandoned.",
            "It may still be running in its thread.",
            "Raise `task.shutdown.graceful.timeout.ms`, or mend the connector. Restart the worker if it holds "
            "resources.",
        ),
        Line(
            "... did not stop within ... s and is abandoned",
            "It may still be running in its thread.",
            "Raise `task.shutdown.graceful.timeout.ms`, or mend the connector. Restart the worker if it holds "
            "resources.",
        ),
        Line(
            "Error encountered in task .... Executing stage '...' with class '...'....",
            "A record failed, and `errors.tolerance` decides; written with `errors.log.enable=true`.",
            "Look at the record, or at the topic `errors.deadletterqueue.topic.name`.",
        ),
        Line(
            "...: poll failed and is called again: ...",
            "The source said that it may be tried again.",
            NOTHING,
        ),
        Line(
            "...: ... failed and is called again in ... ms: ...",
            "The sink said that it may be tried again.",
            "Look at the system that the sink writes to, if it lasts.",
        ),
        Line(
            "...: offsets were not stored: ...",
            "Records that were sent may be sent again after a restart.",
            "Look at the cluster: too few replicas in sync, or no right to write to the offsets topic.",
        ),
        Line(
            "...: offsets were not committed: ...",
            "Records that were written may be written again after a restart.",
            "Look at the cluster: too few replicas in sync, or no right to read with this group.",
        ),
        Line(
            "...: the last commit failed: ...",
            "While the task stopped; records may be sent again.",
            NOTHING,
        ),
        Line(
            "...: closing its partitions failed: ...",
            "The connector raised an error.",
            "Mend the connector.",
        ),
        Line(
            "...: the partitions of its topics cannot be looked up: ...",
            "It tries again.",
            "Look at the cluster.",
        ),
        Line(
            "...: ...; it continues from ...",
            "The offset that the sink wanted has been deleted; `auto.offset.reset` decided.",
            "Raise the retention of the topic, if the sink is often too late.",
        ),
        Line(
            "...: the transaction is empty, so there is nothing to abort",
            "The connector asked for it.",
            NOTHING,
        ),
        Line(
            "...: the last transaction is aborted: ...",
            "While the task stopped; its records are sent again.",
            NOTHING,
        ),
        Line(
            "a transaction stays open: ...",
            "It ends when it times out.",
            "Nothing, or `parley transactions abort`.",
        ),
        Line(
            "... have no effect: tasks run in the worker's own process.",
            "Settings of the worker.",
            "Remove them.",
        ),
        Line(
            "no 'file' is set: the task for topic '...' reads the standard input",
            "The connector `FileStreamSource` without a file.",
            "Set `file`, unless you meant it.",
        ),
        Line(
            "... does not exist: the task waits for it",
            "The file of a `FileStreamSource`.",
            "Create the file.",
        ),
        Line(
            "a connector failed while its configuration was validated",
            "The request fails.",
            "Mend the connector.",
        ),
    ),
)

_WORKERS: Final = Section(
    "Workers of distributed Connect",
    (
        Line(
            "the worker has left the group: stopping all its connectors and tasks",
            "It could not reach its coordinator in time, or was removed. It joins again.",
            "Look at the cluster, or raise `session.timeout.ms`, if it happens again.",
        ),
        Line(
            "the worker could not read the configurations to their end within ... s",
            "It leaves the work to others and tries again.",
            "Look at the topic of configurations.",
        ),
        Line(
            "group ...: ...; the worker tries again",
            "The coordinator refuses it at the moment.",
            "Look at the cluster.",
        ),
        Line(
            "a change of configuration could not be applied",
            "The traceback says why.",
            "Restart the worker.",
        ),
        Line(
            "the level of logger ... cannot be set: ...",
            "The name or the level is unknown.",
            "Correct the request.",
        ),
        Line(
            "this worker is the leader, but cannot write configurations yet: ...; it tries again",
            "Requests that change something fail until it can.",
            "Look at the cluster; the worker needs the right to write with its transactional id.",
        ),
        Line(
            "the tasks of ... could not be sent to the leader: ...; the worker tries again",
            "The leader does not respond at its REST address.",
            "Correct `rest.advertised.host.name` of the leader, or repair the network.",
        ),
        Line(
            "earlier tasks of ... are not fenced yet: ...; the worker tries again",
            "With exactly-once sources: new tasks wait.",
            "Look at the cluster, and at the worker's right to its transactional ids.",
        ),
        Line(
            "... cannot be written by this process now: ...",
            "Another leader writes, or the cluster refuses.",
            NOTHING,
        ),
        Line(
            "...: the worker cannot get its offsets: ...",
            "One of Connect's topics; it tries again.",
            "Look at the cluster.",
        ),
        Line(
            "... cannot be read at the moment: ...",
            "One of Connect's topics; it tries again.",
            "Look at the cluster.",
        ),
        Line(
            "the status of ... cannot be written at the moment: ...",
            "It is tried again.",
            "Look at the cluster.",
        ),
        Line(
            "the configuration record at offset ... cannot be parsed: ...",
            "Another program wrote it; it is ignored.",
            "Let only workers write to this topic.",
        ),
        Line(
            "the offset record at offset ... cannot be parsed: ...",
            "Another program wrote it; it is ignored.",
            "Let only workers write to this topic.",
        ),
        Line(
            "the status record at offset ... cannot be parsed: ...",
            "Another program wrote it; it is ignored.",
            "Let only workers write to this topic.",
        ),
        Line(
            "the metadata of a member of the group cannot be read: ...",
            "It is treated as a worker without work.",
            "Let only workers of one cluster use this `group.id`.",
        ),
        Line(
            "the cleanup.policy of topic '...' cannot be read",
            "The worker cannot check that the topic is compacted.",
            "Allow it to describe the topic's settings; see that `cleanup.policy` is `compact`.",
        ),
    ),
)

_REGISTRY: Final = Section(
    "Schema registry and REST interfaces",
    (
        Line(
            "rejecting a schema of type ...: ...: ...",
            "A library cannot parse it; the client gets 42201.",
            "Correct the schema.",
        ),
        Line(
            "the topic of schemas gets ... replicas, not ..., if it is created now",
            "The cluster has too few brokers.",
            "Start more brokers first, or raise the replication factor later with `parley reassign`.",
        ),
        Line(
            "ignoring a record of unknown kind ...",
            "A newer registry wrote it.",
            "Upgrade this instance.",
        ),
        Line(
            "cannot read the record with key ...: ...",
            "It is ignored.",
            "Let only registries write to this topic.",
        ),
        Line(
            "authentication failed: user ... from ......",
            "A login at the REST interface failed.",
            "Give the client the right password. Many lines: an attacker guesses passwords.",
        ),
        Line(
            "... ... failed",
            "A request of a REST interface; its client gets status 500.",
            DEFECT,
        ),
        Line(
            "the users of the REST API stay as they were: ...",
            "The file of users cannot be used.",
            "Correct the file.",
        ),
    ),
)

_MIRROR: Final = Section(
    "Mirror",
    (
        Line(
            "...: the source does not respond: ...",
            "Nothing is copied meanwhile; it tries again.",
            "Look at the source.",
        ),
        Line(
            "restarting the query in ... s: ...",
            "The Spark query ended with an error.",
            "Look at the reason.",
        ),
        Line(
            "...: cannot create the topic ...: ...",
            "An internal topic of the mirror.",
            "Allow its user to create it.",
        ),
        Line(
            "...: cannot create or grow the topic ...: ...",
            "On the target; it tries again.",
            "Remove the reason.",
        ),
        Line(
            "...: the settings of ... are not synchronized: ...",
            "On the target.",
            "Allow its user to alter the topic.",
        ),
        Line(
            "...: ... is no longer copied: ...",
            "This partition is stuck, for the reason in the line.",
            "Remove the reason. ([mirroring](mirroring.md))",
        ),
        Line(
            "...: ... continues at offset ... instead of ...: ...",
            "Records in between are not copied: they were deleted, or the topic was created again.",
            "Raise the retention of the topic, if the mirror is often too late.",
        ),
        Line(
            "... continues at offset ...: the log was compacted after it was copied, so some later records may "
            "be copied twice",
            "After a failure of the mirror.",
            NOTHING,
        ),
        Line(
            "...: group ...: progress in ... is not committed: ...",
            "The offset of the mirror's own group was not committed.",
            "Remove the reason.",
        ),
        Line(
            "...: group ...: ... is not committed: ...",
            "The offset of a group on the target.",
            "Remove the reason.",
        ),
        Line(
            "...: ... failed, to be repeated: ...: ...",
            "A cluster refused a step of the mirror.",
            "Remove the reason.",
        ),
        Line(
            "skipping offset ... of ...: ...",
            "Another program wrote a record into a topic of the mirror.",
            "Let only the mirror write there.",
        ),
    ),
)

_LOAD: Final = Section(
    "Load, Spark, and other clients",
    (
        Line(
            "no broker responds at ...; trying for ... s",
            "Then it gives up.",
            "Start the brokers, or correct the address.",
        ),
        Line(
            "... was created again since rows were sent to it: all of them are sent again",
            "The topic is another one, with the same name.",
            NOTHING,
        ),
        Line(
            "an older version has begun to send rows to ... and has not noted under which producer id: they are "
            "sent again, and some may be there twice",
            "A load that an older version of Parley began.",
            "Look for duplicates, if they matter.",
        ),
        Line(
            "... has lost records since this load was begun: it ends at ...",
            "The rows that are missing are sent again.",
            "Find out why the partition lost records: an unclean election?",
        ),
        Line(
            "The option '...' is not known, and ignored: did you mean '...'?",
            'An option of `format("parley")`.',
            "Correct it.",
        ),
        Line(
            "The notes of the groups ... stay until they expire: ...",
            "A query was removed, and its notes in `__consumer_offsets` could not be.",
            NOTHING,
        ),
        Line(
            "What killed tasks of ... left open stays so until it times out: ...",
            "Transactions of tasks that died could not be aborted.",
            "Nothing, or `parley transactions abort`.",
        ),
        Line(
            ".... Continuing without it, because 'failOnDataLoss' is false.",
            "Records were deleted before the query read them.",
            "Raise the retention of the topic.",
        ),
        Line(
            "reader ... does not stop; continuing without it",
            "A consumer of `parley check` does not respond.",
            "Look at the brokers.",
        ),
    ),
)

SECTIONS: Final = (_CONNECT, _WORKERS, _REGISTRY, _MIRROR, _LOAD)
