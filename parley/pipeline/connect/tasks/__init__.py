"""Runs tasks: everything between a topic and a task's methods.

``sink_run`` and ``source_run`` run one task; ``host`` runs all tasks of a process, each in a thread.
"""
