"""Records as they are on the wire and on disk: read, built, checked, compressed and converted between formats."""
