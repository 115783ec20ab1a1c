"""What ``parley coordination`` does with a coordination store."""
