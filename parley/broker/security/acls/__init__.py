"""Kafka's access control lists: what they consist of, what they decide, and how they are found."""
