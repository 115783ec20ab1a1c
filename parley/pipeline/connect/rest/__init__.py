"""Kafka Connect's REST API: the same paths, JSON and error codes."""
