"""Configuration files, and what they refer to: key stores and TLS settings. The lowest layer: it imports no other."""
