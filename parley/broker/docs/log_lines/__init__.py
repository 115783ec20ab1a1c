"""Warnings and errors in the log: their meaning and what to do, written to ``docs/log-lines.md``."""
