"""Loads topics into files (Parquet, Delta, CSV, JSON) and back. No record is duplicated or lost, across runs and kills.

- ``ranges``: decides which offsets go into which file. File names show the range.
- ``columns``: turns records into rows: the columns, their schemas in JSON and Avro, event time.
- ``files``: writes one range to files. This is the work of a Spark task.
- ``manifest``: the commits to a folder of files. ``delta`` keeps them in Delta's own log.
- ``job``: rounds of ranges, each committed as a whole.
- ``files_to_topic``: sends files to a topic.
- ``reporting``: reports the progress in a topic of the cluster. ``progress_topic`` describes its records.
- ``row_count``: counts the rows that will be sent to a topic.
"""
