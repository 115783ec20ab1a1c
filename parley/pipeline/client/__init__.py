"""A blocking client of any Kafka cluster: topics as Arrow rows, and Arrow rows as records.

Start with ``cluster``. ``decode`` and ``encode`` convert record batches to Arrow and back; ``writing`` writes rows,
``tables`` reads whole topics. Nothing here depends on Spark.
"""
