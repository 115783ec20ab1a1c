"""Damage in logs: how damaged records are found, kept from readers and mended (docs/storage.md, "Damage")."""
