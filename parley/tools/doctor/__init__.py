"""``parley doctor``: find out what is wrong with a cluster, or with a broker that does not start, and what to do next.

1. ``facts`` defines the snapshot, which is taken once. A missing part is recorded with the reason.
2. ``gathering_*`` take the snapshot. All I/O is in these modules, and each step has a time limit.
3. ``*_checks`` decide from the snapshot alone.
4. ``table`` lists all checks. The page docs/doctor.md is generated from it.
"""
