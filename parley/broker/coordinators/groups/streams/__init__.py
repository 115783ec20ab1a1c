"""Streams groups (KIP-1071): the members share the tasks of a Kafka Streams application."""
