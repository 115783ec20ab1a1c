"""The definitions of all configuration keys, one module per subject."""
