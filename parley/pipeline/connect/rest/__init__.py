"""Kafka Connect's REST API: the same paths, JSON and error codes, on any
:class:`parley.pipeline.connect.herder.Herder`."""
