"""The server side of SASL: the states of a login, and the mechanisms."""
