"""Whole clusters in one process under virtual time: brokers, clients, store, network and disks, decided by one seed.

Nothing of the brokers is replaced: ``BrokerServer``, the controller, replication and storage run as they are, above an
event loop, sockets and an fsync of the simulation's own. A seed replays exactly, so a failure can be looked at again.
"""
