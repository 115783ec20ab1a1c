"""Topics of one cluster copied to another, as MirrorMaker 2 does it (KIP-382), as a Spark streaming job.

Names of topics and the bytes of records in them are those of Apache Kafka's MirrorMaker 2, so that its
``RemoteClusterUtils``, its formatters and MirrorMaker itself read what we write, and the other way round. What differs
is how records are copied: whole batches as they are, in one Spark task per partition, and the place to go on from is
found in the target's own log, so that a copy continues after any kill without a record twice or missing.

- `naming`: which topics are copied, and how they are called on the other side; loops are seen by name.
- `settings`: an ``mm2.properties`` file read, or the flags of the first MirrorMaker.
- `internal_records`: heartbeats, checkpoints, offset syncs, as bytes.
- `translation`: an offset here as an offset there.
- `groups`: which committed offsets of consumer groups are carried over.
- `topics`: which topics, partitions and settings are missing on the target.
- `appending`: batches appended to a partition so that its own log refuses what it has already.
- `copying`: one range of one partition, copied in a Spark task.
- `flow`: everything known of one pair of clusters, kept by the driver.
- `job`: the streaming query over all pairs.
"""
