"""The assignors of consumer groups: they decide which member of a group is to have which partitions."""
