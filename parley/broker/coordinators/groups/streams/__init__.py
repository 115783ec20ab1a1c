"""Streams groups (KIP-1071): their members share the tasks of a Kafka Streams application."""
