"""The metrics and the health of a broker, which ``/metrics`` and ``/healthz`` serve.

``catalogue`` defines every metric, with a module for each subject. ``broker_metrics`` and ``group_metrics`` read their
values from the parts of a running broker, ``registry.Metrics`` collects them, and ``exporter`` serves them.
"""
