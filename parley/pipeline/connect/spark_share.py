"""How much of a Spark cluster a worker takes, and what its tasks wait for while it has nothing of it.

Rules:

* On this machine (``local[...]``) a worker has a host of tasks in each slot.
* Of a cluster it takes ``spark.hosts`` slots; without that key what ``spark.cores.max`` allows, without both
  `CLUSTER_HOSTS`. A standalone cluster gives an application all its cores unless ``spark.cores.max`` says otherwise, so
  the key is always set there: else the first worker would leave nothing to the second.
* How many executors have registered does not matter: just after a start it is any number.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from parley.pipeline.shipping import missing_module

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["CLUSTER_HOSTS", "bounded", "hosts_wanted", "why_tasks_wait"]

CLUSTER_HOSTS: Final = 2
"""As many executors as Spark asks YARN and Kubernetes for by default."""
_CORES: Final = "spark.cores.max"
_TASK_CPUS: Final = "spark.task.cpus"


def bounded(settings: Mapping[str, str], master: str | None, hosts: int | None) -> dict[str, str]:
    """Spark's settings with a bound of the cores, if the master is that of a standalone cluster."""
    if not (master or "").startswith("spark://") or _CORES in settings:
        return dict(settings)
    return {**settings, _CORES: str((hosts or CLUSTER_HOSTS) * int(settings.get(_TASK_CPUS, "1")))}


def hosts_wanted(context: SparkContext, hosts: int | None) -> int:
    """In how many slots the tasks of the worker run; ``hosts`` is the key ``spark.hosts``."""
    if hosts is not None:
        return hosts
    if context.master.startswith("local"):
        return int(context.defaultParallelism)
    conf = context.getConf()
    cores = conf.get(_CORES)
    return CLUSTER_HOSTS if cores is None else max(1, int(cores) // int(conf.get(_TASK_CPUS, "1")))


def why_tasks_wait(context: SparkContext | None, address: tuple[str, int], failure: BaseException | None) -> str:
    """What the status of a task says that no host has taken yet. ``failure`` is what ended the query before."""
    if failure is not None:
        told = missing_module(failure) or f"{failure}".partition("\n")[0]
        return f"Spark could not run the processes for tasks, and tries it again: {told}"
    executors, cores = (None, "") if context is None else _executors(context)
    if context is not None and executors == 0:
        return (
            f"Waiting for Spark: {context.master} has given this worker no executor yet (it asks for {cores} cores,"
            " spark.cores.max). If this lasts, other applications hold all cores or the memory, or the executors end at"
            " their start: see the pages of Spark's master. Give every application a bound, stop one, or add Spark"
            " workers; the task begins by itself then."
        )
    return (
        f"Waiting for Spark: none of its processes for tasks has connected to {address[0]}:{address[1]} yet. If this"
        " lasts, other jobs hold the slots, or a firewall keeps executors from this address."
    )


def _executors(context: SparkContext) -> tuple[int | None, str]:
    """How many executors have registered (None on this machine, or if Spark does not tell), and the bound of cores."""
    if not context.master.startswith("local"):
        with suppress(Exception):  # whatever a Spark raises that is about to end
            found = int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is one of them
            return found, context.getConf().get(_CORES, "as many as there are")
    return None, ""
