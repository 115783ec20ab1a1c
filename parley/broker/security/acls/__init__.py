"""Kafka's access control lists: their contents, their stored form, and their evaluation."""
