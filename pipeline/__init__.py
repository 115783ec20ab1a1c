"""The data pipeline: topics of any Kafka cluster as tables, on Spark or without it.

Nothing here knows a broker: a cluster is reached through the protocol only. ``import pipeline`` imports neither Spark
nor Arrow; what a part needs is imported when the part is.
"""
