"""Generators of the documentation pages that are made from code (``make docs``)."""
