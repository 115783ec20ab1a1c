"""Compaction: the log cleaner, and how it rewrites logs to keep only the last record of each key (docs/storage.md)."""
