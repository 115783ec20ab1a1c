"""Spark itself: a session with the settings that the jobs need, Java for Spark, and Parley on the executors."""
