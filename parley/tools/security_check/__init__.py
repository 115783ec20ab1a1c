"""``parley security check``: what a configuration, or a running cluster, leaves open, and how to close it."""
