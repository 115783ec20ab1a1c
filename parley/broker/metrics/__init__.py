"""The metrics and the health of a broker, which ``/metrics`` and ``/healthz`` serve.

``catalogue`` defines every metric, with a module for each subject. ``registry.Metrics`` collects the values of one
broker, and ``exporter`` serves them.
"""
