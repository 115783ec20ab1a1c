"""Guards, which check the rights of a client before a handler gets its request. Only a broker with an authorizer has
them."""
