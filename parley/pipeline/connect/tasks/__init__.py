"""Running tasks: what happens between a topic and a task's methods, wherever the task runs.

:mod:`~parley.pipeline.connect.tasks.sink_run` and :mod:`~parley.pipeline.connect.tasks.source_run` are one task each,
:mod:`~parley.pipeline.connect.tasks.host` is a process with many of them, a thread for each.
"""
