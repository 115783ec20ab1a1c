"""Which values a column stores exactly, and how it is widened: one rule for load and the sinks of Connect."""
