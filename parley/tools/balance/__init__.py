"""Balance a cluster: which replicas and leaders move to which brokers.

``cluster`` has what is known of a cluster, ``plan`` has what is wanted and what is decided. ``planner`` decides: a pure
function of both, without I/O. ``explanation`` describes a plan in sentences and bars. The command
``parley balance`` (``parley/tools/cli/balance``) gets the facts from a cluster, and executes the plan.
"""
