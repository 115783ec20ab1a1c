"""Partition logs on disk, in Kafka's layout. docs/storage.md has the rules."""
