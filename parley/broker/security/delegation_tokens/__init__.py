"""Delegation tokens (KIP-48): a token as the metadata keeps it, and decisions about tokens."""
