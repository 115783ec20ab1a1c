"""Transactions on the data path: verification before the first append, markers, offset commits (KIP-98, KIP-890)."""
