"""Simulation of whole clusters in one process under virtual time, determined entirely by a seed.

The brokers are the real ones: ``BrokerServer``, the controller, replication and storage run unchanged. The event loop,
the sockets, fsync, the coordination store and the clients are simulated. A seed always gives the same run, so that a
failure can be examined again. docs/simulation.md has the details.
"""
