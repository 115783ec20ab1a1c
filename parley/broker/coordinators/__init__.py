"""Coordinators: what a broker does for clients beyond storing records. Consumer groups, and the ids of producers."""
