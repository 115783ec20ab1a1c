"""Topics of one cluster copied to another, as MirrorMaker 2 does it (KIP-382), as a Spark streaming job.

Names of topics and the bytes of records in them are those of Apache Kafka's MirrorMaker 2, so that its
``RemoteClusterUtils``, its formatters and MirrorMaker itself read what we write, and the other way round. What differs
is how records are copied: whole batches as they are, in one Spark task per partition, and the place to go on from is
found in the target's own log, so that a copy continues after any kill without a record twice or missing.

Decisions: `naming` (which topics, and what they are called; loops are seen by name), `settings` (``mm2.properties``,
and the flags of the first MirrorMaker), `internal_records` (heartbeats, checkpoints, offset syncs as bytes),
`translation` (an offset here as an offset there), `groups` and `topics` (which commits, topics and settings are carried
over).

Copying: `batches` (a source's batches made ready), `appending` (a log that refuses what it has already), `copying` (one
range of a partition, what a Spark task does).

Running: `admin` (what is asked of a cluster besides records), `flow` (everything known of one pair of clusters),
`notes` (how far it is, written down on the target), `rounds` (all flows at work, in any process), `stream` and `job`
(as a Spark streaming query).
"""
