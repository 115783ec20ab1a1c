"""Records on the wire and on disk: reads, builds, checks, compresses and converts them."""
