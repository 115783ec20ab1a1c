"""The format ``parley`` of Spark: source and sink, their options, and what they decide about offsets.

A query that runs again writes only the missing rows: ``epochs`` has the rules.
"""
