"""Workers that share out connectors among them: the topics they keep what they know in, their group, its rebalances.

Formats and names are Kafka Connect's, so that a cluster of its workers can go on as one of ours, and the other way
round.
"""
