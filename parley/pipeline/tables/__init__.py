"""Table formats that several parts of the pipeline write to."""
