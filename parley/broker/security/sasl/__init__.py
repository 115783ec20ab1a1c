"""SASL on the server's side: the states of a login, and the mechanisms."""
