"""``parley doctor``: what is wrong with a cluster, or with a broker that does not start, and what to do next.

1. ``facts`` is a snapshot, taken once. Missing parts are noted with the reason.
2. ``gathering_*`` take the snapshot: all I/O is there, and each step has a time limit.
3. ``cluster_checks`` and ``machine_checks`` decide from the snapshot alone.
4. ``table`` lists all checks; the page docs/doctor.md is generated from it.
"""
