"""Coordination: group membership, leader election, key-value metadata and change listeners over one store (KIP-30)."""
