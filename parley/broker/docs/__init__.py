"""Generators of the documentation pages that are derived from code (``make docs``)."""
