"""The secured cluster of ``make cluster SECURE=1`` and ``make quickstart SECURE=1``: its files, users, and
intruders."""
