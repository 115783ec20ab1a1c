"""Groups of the classic protocol: the members assign partitions among themselves, in rebalances."""
