"""Schemas of a schema registry: what a schema is, how Avro, JSON Schema and Protobuf are parsed, and the client.

The registry (``parley.pipeline.registry``), Spark's format and Connect's converters use these parts. Parsed schemas
know their canonical text: two texts with the same one are the same schema.
"""
