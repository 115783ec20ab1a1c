"""Log lines of the programs other than the broker: connect, the schema registry, mirror, load, Spark, check."""

from __future__ import annotations

from typing import Final

from parley.broker.docs.log_lines.line import DEFECT, NOTHING, Line, Section

_CONNECT: Final = Section(
    "Connect",
    (
        Line(
            "Connector ... failed.",
            "The traceback shows the reason. The connector stays stopped.",
            "Fix the connector, and restart it with the REST API.",
        ),
        Line(
            "Task ... failed. It stays stopped until it is restarted: ...",
            "A task of `parley connect standalone`.",
            "Fix the cause, and restart the task with the REST API.",
        ),
        Line(
            "... ... has failed: ...",
            "A task or a connector of `parley connect distributed`, with its traceback.",
            "Fix the cause, and restart the task with the REST API.",
        ),
        Line(
            "Stopping connector ... failed: ...",
            "The worker forgets the connector.",
            "Fix the connector.",
        ),
        Line(
            "Task ... did not stop cleanly: ...",
            "The worker forgets the task.",
            "Fix the connector.",
        ),
        Line(
            "... failed while it stopped: ...",
            "The worker forgets the task or connector.",
            "Fix the connector.",
        ),
        Line(
            "Task ... did not stop within ... ms and is abandoned.",
            "The task may still be running in its thread.",
            "Raise `task.shutdown.graceful.timeout.ms`, or fix the connector. Restart the worker if it holds "
            "resources.",
        ),
        Line(
            "... did not stop within ... s and is abandoned",
            "The task may still be running in its thread.",
            "Raise `task.shutdown.graceful.timeout.ms`, or fix the connector. Restart the worker if it holds "
            "resources.",
        ),
        Line(
            "Error encountered in task .... Executing stage '...' with class '...'....",
            "A record failed; `errors.tolerance` decides whether the task fails. Logged with `errors.log.enable=true`.",
            "Inspect the record, or the topic in `errors.deadletterqueue.topic.name`.",
        ),
        Line(
            "...: poll failed and is called again: ...",
            "The source connector raised a retriable error.",
            NOTHING,
        ),
        Line(
            "...: ... failed and is called again in ... ms: ...",
            "The sink connector raised a retriable error.",
            "If this continues, check the system to which the sink writes.",
        ),
        Line(
            "...: offsets were not stored: ...",
            "Records that were sent may be sent again after a restart.",
            "Check the cluster: too few replicas may be in sync, or the worker "
            "may lack the right to write to the offsets topic.",
        ),
        Line(
            "...: offsets were not committed: ...",
            "Records that were written may be written again after a restart.",
            "Check the cluster: too few replicas may be in sync, or the worker "
            "may lack the right to read with this group.",
        ),
        Line(
            "...: the last commit failed: ...",
            "This happened while the task stopped. Records may be sent again.",
            NOTHING,
        ),
        Line(
            "...: closing its partitions failed: ...",
            "The connector raised an error.",
            "Fix the connector.",
        ),
        Line(
            "...: the partitions of its topics cannot be looked up, so the task continues with those it has: ...",
            "The task tries again later. Until then it does not read new partitions.",
            "Check the cluster.",
        ),
        Line(
            "...: ...; it continues from ...",
            "The sink's next offset no longer exists; `auto.offset.reset` determines the new offset.",
            "If the sink is often too late, raise the retention of the topic.",
        ),
        Line(
            "...: the transaction is empty, so there is nothing to abort",
            "The connector requested the abort.",
            NOTHING,
        ),
        Line(
            "...: the last transaction is aborted: ...",
            "This happened while the task stopped. Its records are sent again.",
            NOTHING,
        ),
        Line(
            "a transaction stays open: ...",
            "The transaction ends when it times out.",
            "Nothing, or `parley transactions abort`.",
        ),
        Line(
            "... have no effect: tasks run in the worker's own process.",
            "These settings of the worker are not used.",
            "Remove them.",
        ),
        Line(
            "no 'file' is set: the task for topic '...' reads the standard input",
            "The connector `FileStreamSource` has no file.",
            "Set `file`, unless standard input is intended.",
        ),
        Line(
            "... does not exist: the task waits for it",
            "The file of a `FileStreamSource`.",
            "Create the file.",
        ),
        Line(
            "a connector failed while its configuration was validated",
            "The request fails.",
            "Fix the connector.",
        ),
    ),
)

_WORKERS: Final = Section(
    "Workers of distributed Connect",
    (
        Line(
            "the worker has left the group: stopping all its connectors and tasks",
            "The worker could not reach its coordinator in time, or was removed from the group. It joins again.",
            "If this happens again, check the cluster, or raise `session.timeout.ms`.",
        ),
        Line(
            "the worker could not read to the end of the config topic within ... s",
            "The worker leaves its work to other workers, and tries again.",
            "Check the config topic.",
        ),
        Line(
            "group ...: ...; the worker tries again",
            "The coordinator rejects the worker's request at the moment.",
            "Check the cluster.",
        ),
        Line(
            "a change of configuration could not be applied",
            "The traceback shows the reason.",
            "Restart the worker.",
        ),
        Line(
            "the level of logger ... cannot be set: ...",
            "The name or the level is unknown.",
            "Correct the request.",
        ),
        Line(
            "this worker is the leader, but cannot write configurations yet: ...; it tries again",
            "Requests that change anything fail until the leader can write.",
            "Check the cluster; the worker needs the right to write with its transactional id.",
        ),
        Line(
            "the tasks of ... could not be sent to the leader: ...; the worker tries again",
            "The leader does not respond at its REST address.",
            "Correct `rest.advertised.host.name` of the leader, or repair the network.",
        ),
        Line(
            "earlier tasks of ... are not fenced yet: ...; the worker tries again",
            "With exactly-once sources, new tasks wait until the earlier tasks are fenced.",
            "Check the cluster, and the worker's right to write with its transactional ids.",
        ),
        Line(
            "this worker cannot write to ... at the moment: ...",
            "Another leader writes to the topic, or the cluster rejects the write.",
            NOTHING,
        ),
        Line(
            "...: the worker cannot get its offsets: ...",
            "This is one of Connect's internal topics. The worker tries again.",
            "Check the cluster.",
        ),
        Line(
            "... cannot be read at the moment: ...",
            "This is one of Connect's internal topics. The worker tries again.",
            "Check the cluster.",
        ),
        Line(
            "the status of ... cannot be written at the moment: ...",
            "The worker tries again.",
            "Check the cluster.",
        ),
        Line(
            "the configuration record at offset ... cannot be parsed: ...",
            "Another program wrote the record, which is ignored.",
            "Allow only workers to write to this topic.",
        ),
        Line(
            "the offset record at offset ... cannot be parsed: ...",
            "Another program wrote the record, which is ignored.",
            "Allow only workers to write to this topic.",
        ),
        Line(
            "the status record at offset ... cannot be parsed: ...",
            "Another program wrote the record, which is ignored.",
            "Allow only workers to write to this topic.",
        ),
        Line(
            "the metadata of a member of the group cannot be read: ...",
            "The member is treated as a worker without work.",
            "Allow only workers of one cluster to use this `group.id`.",
        ),
        Line(
            "the cleanup.policy of topic '...' cannot be read",
            "The worker cannot check that the topic is compacted.",
            "Allow the worker to describe the topic's settings, and check that `cleanup.policy` is `compact`.",
        ),
    ),
)

_REGISTRY: Final = Section(
    "Schema registry and REST interfaces",
    (
        Line(
            "not comparing with version ... of ...: ...",
            "A number in this version's schema is not finite, so that no client can parse it. New schemas of the "
            "subject are compared with the other versions only.",
            "Delete the version.",
        ),
        Line(
            "rejecting a schema of type ...: ...: ...",
            "A library cannot parse the schema. The client gets the error 42201.",
            "Correct the schema.",
        ),
        Line(
            "the topic of schemas gets ... replicas, not ..., if it is created now",
            "The cluster has too few brokers.",
            "Start more brokers first, or raise the replication factor later with `parley reassign`.",
        ),
        Line(
            "ignoring a record of unknown kind ...",
            "A newer registry wrote the record.",
            "Upgrade this instance.",
        ),
        Line(
            "cannot read the record with key ...: ...",
            "The record is ignored.",
            "Allow only registries to write to this topic.",
        ),
        Line(
            "authentication failed: user ... from ......",
            "A login at the REST API failed.",
            "Give the client the right password. Many such lines mean that an attacker guesses passwords.",
        ),
        Line(
            "... ... failed",
            "A request to a REST API failed unexpectedly. The client gets the status 500.",
            DEFECT,
        ),
        Line(
            "the users of the REST API were not reloaded: ...",
            "The file of users is invalid or unreadable. The previous users stay valid.",
            "Correct the file.",
        ),
    ),
)

_MIRROR: Final = Section(
    "Mirror",
    (
        Line(
            "...: the source does not respond: ...",
            "Nothing is copied until the source responds. The mirror tries again.",
            "Check the source cluster.",
        ),
        Line(
            "restarting the query in ... s: ...",
            "The Spark query ended with an error.",
            "Check the reason in the line.",
        ),
        Line(
            "...: cannot create the topic ...: ...",
            "This is an internal topic of the mirror.",
            "Allow the mirror's user to create the topic.",
        ),
        Line(
            "...: cannot create or grow the topic ...: ...",
            "The topic is on the target. The mirror tries again.",
            "Fix the cause.",
        ),
        Line(
            "...: the settings of ... are not synchronized: ...",
            "The topic is on the target.",
            "Allow the mirror's user to alter the topic.",
        ),
        Line(
            "...: ... is no longer copied: ...",
            "This partition is no longer mirrored, for the reason in the line.",
            "Fix the cause. ([mirroring](mirroring.md))",
        ),
        Line(
            "...: ... continues at offset ... instead of ...: ...",
            "Records in between are not copied: they were deleted, or the topic was created again.",
            "If the mirror is often too late, raise the retention of the topic.",
        ),
        Line(
            "... continues at offset ...: the log was compacted after it was copied, so some later records may "
            "be copied twice",
            "This happens after a failure of the mirror.",
            NOTHING,
        ),
        Line(
            "...: group ...: progress in ... is not committed: ...",
            "The offset of the mirror's own group was not committed.",
            "Fix the cause.",
        ),
        Line(
            "...: group ...: ... is not committed: ...",
            "The offset of a group on the target was not committed.",
            "Fix the cause.",
        ),
        Line(
            "...: ... failed and will be repeated: ...: ...",
            "A cluster rejected a request of the mirror.",
            "Fix the cause.",
        ),
        Line(
            "skipping offset ... of ...: ...",
            "Another program wrote a record into a topic of the mirror.",
            "Allow only the mirror to write to this topic.",
        ),
    ),
)

_LOAD: Final = Section(
    "Load, Spark, and other clients",
    (
        Line(
            "no broker responds at ...; trying for ... s",
            "After that time, the client gives up.",
            "Start the brokers, or correct the address.",
        ),
        Line(
            "... was created again after rows were sent to it: sending all rows again",
            "The topic was deleted, and another topic with the same name was created.",
            NOTHING,
        ),
        Line(
            "an older version had started sending rows to ... without recording its producer id: resending them; "
            "some may be duplicated",
            "A load that an older version of Parley began.",
            "If duplicates matter, look for them.",
        ),
        Line(
            "... has lost records since this load began: it ends at offset ...",
            "The missing rows are sent again.",
            "Find out why the partition lost records. The cause may be an unclean election.",
        ),
        Line(
            "The option '...' is not known, and ignored: did you mean '...'?",
            'An option of `format("parley")`.',
            "Correct the option.",
        ),
        Line(
            "The notes of the groups ... stay until they expire: ...",
            "A query was removed, but its notes in `__consumer_offsets` could not be removed.",
            NOTHING,
        ),
        Line(
            "The tasks of ... could not be fenced, so transactions of killed tasks stay open until they time out: ...",
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
            "Check the brokers.",
        ),
    ),
)

SECTIONS: Final = (_CONNECT, _WORKERS, _REGISTRY, _MIRROR, _LOAD)
