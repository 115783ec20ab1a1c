"""Share partitions: members of a share group acquire and acknowledge individual records of a partition (KIP-932)."""
