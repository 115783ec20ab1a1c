"""The runtime that the parts of a broker share: the clock, tasks, threads, purgatories and state tables."""
