"""The broker: network, request handlers, partitions, controller, groups."""
