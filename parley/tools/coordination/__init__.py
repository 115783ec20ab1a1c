"""The implementation of ``parley coordination``: status, fitness, dump and restore of a coordination store."""
