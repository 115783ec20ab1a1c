"""Following leaders, and keeping the set of replicas that are in sync."""
