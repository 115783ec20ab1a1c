"""The values that a column stores exactly, and how columns are widened: one rule for load and for Connect's sinks."""
