"""The format ``parley`` of Spark: source and sink, their options, and what they decide about offsets.

A query that is run again writes only what is missing: `epochs` has the rules.
"""
