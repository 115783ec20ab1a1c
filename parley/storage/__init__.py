"""The logs of partitions on disk, in Kafka's own layout. docs/storage.md has the rules."""
