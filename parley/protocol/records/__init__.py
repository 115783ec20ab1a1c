"""Reads, builds, checks, compresses and converts records in the formats used on the wire and on disk."""
