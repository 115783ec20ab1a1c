"""The assignors of consumer groups, which decide which member gets which partitions."""
