"""Schemas of a schema registry: what a schema is, and how Avro, JSON Schema and Protobuf are parsed.

The registry (``parley.pipeline.registry``) compares schemas by their canonical texts: two texts with the same one are
the same schema. ``client`` is the registry's client, of Spark's format (``parley.pipeline.format``) and of Connect's
``AvroConverter``. ``rows`` and the modules ``*_rows`` turn encoded values into typed columns and back, for Spark.
"""
