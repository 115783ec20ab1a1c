"""Delegation tokens (KIP-48): tokens as the metadata stores them, and decisions about tokens."""
