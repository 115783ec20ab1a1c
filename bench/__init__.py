"""What Parley costs beside Apache Kafka: the same client, the same work, the same machine, in turn."""
