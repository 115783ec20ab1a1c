"""The harnesses of the stores that come with Parley."""
