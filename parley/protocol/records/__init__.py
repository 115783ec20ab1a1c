"""Records on the wire and on disk: reading, building, checking, compressing and converting them."""
