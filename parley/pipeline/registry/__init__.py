"""A schema registry with Confluent's REST API. Its state is a compacted topic (docs/schema-registry.md)."""
