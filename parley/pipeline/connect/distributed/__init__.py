"""Workers that share connectors: their group, its rebalances, and the topics that store their state.

Formats and names are Kafka Connect's, so that Parley's workers can replace Kafka's on a cluster, and the other way
round.
"""
