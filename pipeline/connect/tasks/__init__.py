"""Running tasks: what happens between a topic and a task's methods, wherever the task runs.

:mod:`~pipeline.connect.tasks.sink` and :mod:`~pipeline.connect.tasks.source` are one task each,
:mod:`~pipeline.connect.tasks.host` is a process with many of them, a thread for each.
"""
