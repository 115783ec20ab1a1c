"""Loads topics into files (Parquet, Delta, CSV, JSON) and back. No record is twice or missing, across runs and kills.

- ``ranges``: which offsets become which file. The names of files tell.
- ``columns``: from records to rows: the columns, their schemas in JSON and Avro, event time.
- ``files``: writes one range to files: the work of a Spark task.
- ``manifest``: what was committed to a folder of files; ``delta`` keeps this in Delta's own log.
- ``job``: rounds of ranges, each committed as a whole.
- ``back``: files to a topic.
"""
