"""The logs of partitions on disk, in Kafka's own layout: segments, indexes, recovery, retention, producer state."""
