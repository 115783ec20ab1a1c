"""The authorization checks before the request handlers, if the broker has an authorizer."""
