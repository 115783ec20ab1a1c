"""Partition logs on disk, in Kafka's own layout. docs/storage.md has the rules."""
