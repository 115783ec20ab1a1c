"""Compaction: the log cleaner, and how it rewrites logs so that the last record of each key stays (docs/storage.md)."""
