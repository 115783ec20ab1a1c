"""Kafka's access control lists: their contents, how they decide, and how a decision finds them."""
