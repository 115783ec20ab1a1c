"""Schemas of a schema registry: what a schema is, and how Avro, JSON Schema and Protobuf are parsed.

The registry (``parley.pipeline.registry``) compares schemas by their canonical texts: two texts with the same canonical
text are the same schema. ``client`` is the client of a registry, for Spark's format (``parley.pipeline.format``) and
Connect's ``AvroConverter``. ``rows`` and the modules ``*_rows`` convert encoded values to typed columns and back, for
Spark.
"""
