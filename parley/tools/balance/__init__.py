"""Balance a cluster: decide which replicas and leaders move to which brokers.

``cluster`` describes a cluster, and ``plan`` the goals and the resulting moves. ``planner`` decides: it is a pure
function from a cluster and goals to a plan, without I/O. ``explanation`` describes a plan in sentences and bars. The
command ``parley balance`` (``parley/tools/cli/balance``) reads the facts from a cluster and executes the plan.
"""
