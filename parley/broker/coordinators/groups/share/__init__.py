"""Share groups: members acquire individual records of the same partitions (KIP-932)."""
