"""The data pipeline: topics of any Kafka cluster as tables, on Spark or without it.

Nothing here depends on a broker: a cluster is reached only through the protocol. Importing this package imports neither
Spark nor Arrow; a module that needs one imports it.
"""
