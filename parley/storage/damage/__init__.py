"""Damage in logs: how damaged records are found, hidden from readers and mended (docs/storage.md, "Damage")."""
