"""Compaction: the log cleaner, which rewrites logs to keep only the last record of each key (docs/storage.md)."""
