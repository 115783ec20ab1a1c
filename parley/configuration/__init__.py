"""Configuration files, and the key stores and TLS settings to which they refer. This is the lowest layer: it imports
nothing from the rest of Parley."""
