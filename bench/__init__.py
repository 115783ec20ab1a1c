"""Benchmarks of Parley beside Apache Kafka: the same client, load and machine, in turns."""
