"""The checks that stand before the request handlers of a broker with an authorizer."""
