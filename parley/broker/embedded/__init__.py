"""Brokers and clusters that run inside a Python program: ``parley.Broker`` and ``parley.Cluster``."""
