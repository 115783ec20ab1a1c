"""The Spark format ``parley``: source and sink, their options, and their decisions about offsets.

A query that runs again writes only the missing rows, by the rules of ``exactly_once``.
"""
