"""Simulation of whole clusters in one process under virtual time, all of it decided by one seed.

The brokers are the real ones: ``BrokerServer``, the controller, replication and storage run unchanged. The event loop,
the sockets, fsync, the coordination store and the clients are the simulation's. A seed replays exactly, so that a
failure can be examined again. docs/simulation.md has the details.
"""
