"""Handlers of client and broker requests, one module per family of APIs."""
