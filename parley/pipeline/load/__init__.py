"""Topics to files, and back: Parquet, Delta, CSV and JSON, without a record twice or missing across runs and kills.

- `ranges`: which offsets become which file; names of files say so.
- `columns`: what the columns are, from records to rows: schemas of JSON and Avro, event time.
- `files`: one range written to files, what a Spark task does.
- `manifest`: what was committed, for folders of files; `delta` keeps the same in Delta's own log.
- `job`: rounds of ranges, each committed as a whole.
- `back`: files to a topic.
"""
