"""Tables in open formats that several parts of the pipeline write to."""
