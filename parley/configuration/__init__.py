"""Configuration files, and the key stores and TLS settings to which they refer. The lowest layer: it imports no
other."""
