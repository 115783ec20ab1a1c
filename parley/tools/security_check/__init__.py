"""``parley security check``: find the weaknesses of a configuration or a running cluster, and how to fix them."""
