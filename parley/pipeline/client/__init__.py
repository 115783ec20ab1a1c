"""A client of any Kafka cluster for code that blocks: topics as Arrow rows, and Arrow rows as records.

`cluster` is the way in; `decode` and `encode` turn record batches into Arrow and back; `writing` writes rows, `tables`
reads topics whole. Nothing here knows Spark.
"""
