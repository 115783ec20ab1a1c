"""Share partitions: the members of a share group acquire and acknowledge single records of a partition (KIP-932)."""
