"""The log of the broker process: its lines, its levels, and a rate limit for unexpected errors."""
