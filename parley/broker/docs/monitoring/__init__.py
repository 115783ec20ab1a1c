"""Alerts and dashboards: defined here once, written to ``deploy/monitoring/`` and ``docs/monitoring.md``."""
