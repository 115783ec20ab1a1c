"""Copies topics of one cluster to another, as MirrorMaker 2 does (KIP-382), as a Spark streaming job.

Topics have the names and records of Apache Kafka's MirrorMaker 2: MirrorMaker, its ``RemoteClusterUtils`` and its
formatters read Parley's topics, and Parley reads MirrorMaker's. Copying works differently: a Spark task per partition
copies whole batches unchanged, and finds in the target's own log how far the copy has progressed. Therefore a copy
continues after any kill, and no record is duplicated or lost.

Decisions: ``naming`` (the mirrored topics and their names; names show loops), ``settings`` (``mm2.properties``, and the
flags of the first MirrorMaker), ``internal_records`` (the bytes of heartbeats, checkpoints and offset syncs),
``translation`` (from an offset of the source to one of the target), ``checkpoints`` and ``topics`` (the commits, topics
and settings that are mirrored).

Copying: ``batches`` (prepares a source's batches), ``appending`` (makes a log refuse batches that it already has),
``copying`` (copies one range of a partition: the work of a Spark task).

Running: ``admin`` (requests other than records), ``flow`` (the state of one pair of clusters), ``notes`` (its progress,
stored on the target), ``rounds`` (all flows, in any process), ``stream`` and ``job`` (as a streaming query).
"""
