"""Principals and the operations of Kafka's access control model."""
