"""Spark itself: a session with the settings that the jobs need, its Java, and Parley on its executors."""
