"""The broker: network, request handlers, partitions, controller, and groups."""
