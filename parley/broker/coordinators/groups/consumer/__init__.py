"""Groups of the consumer protocol (KIP-848): the coordinator assigns partitions, in the heartbeats of members."""
