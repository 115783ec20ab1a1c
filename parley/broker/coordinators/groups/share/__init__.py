"""Share groups: members acquire single records of the same partitions (KIP-932)."""
