"""The data pipeline: topics of any Kafka cluster as tables, on Spark or without it.

Nothing here knows a broker: a cluster is reached through the protocol only. Importing this package imports neither
Spark nor Arrow; a part that needs one imports it.
"""
