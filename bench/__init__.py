"""Benchmarks of Parley and Apache Kafka, with the same client, load and machine, in alternation."""
