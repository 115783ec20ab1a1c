"""Clusters for the planner: random ones, by Hypothesis and by seed."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from parley.tools.balance.cluster import Broker, Cluster, Partition


@st.composite
def clusters(draw: st.DrawFn, *, racks: bool = True) -> Cluster:
    """Any small cluster: some replicas may be on brokers that do not run, some partitions move or have no leader."""
    count = draw(st.integers(1, 6))
    names = st.sampled_from(("a", "b", "c")) if racks and draw(st.booleans()) else st.none()
    disks = st.sampled_from((1000, 2000)) if draw(st.booleans()) else st.none()
    brokers = tuple(
        Broker(number, draw(names), disk, None if disk is None else disk * 10**6)
        for number in range(count)
        for disk in [draw(disks)]
    )
    partitions = []
    for index in range(draw(st.integers(0, 12))):
        ids = st.lists(st.integers(0, count), min_size=1, max_size=min(3, count), unique=True)  # `count` does not run
        replicas = tuple(draw(ids))
        bytes_in = draw(st.integers(0, 10**6))
        partitions.append(
            Partition(
                f"t{index // 4}",
                index % 4,
                replicas,
                draw(st.sampled_from((*replicas, -1))),
                draw(st.integers(0, 10**8)),
                bytes_in,
                bytes_in * len(replicas),
                draw(st.integers(0, 9)) == 0,
            )
        )
    return Cluster(brokers, tuple(partitions))


def recorded(
    seed: int, *, brokers: int, partitions: int, factor: int = 3, racks: int = 3, added: int = 0, uneven: float = 0.0
) -> Cluster:
    """Return a cluster as it grows in practice: sizes and rates are lognormal, replicas are spread over racks.

    The last ``added`` brokers are empty. Brokers get up to ``uneven`` (a part of 1) more or fewer replicas than others.
    """
    random = Random(seed)
    weights = [1 + uneven * random.uniform(-1, 1) for _ in range(brokers)]
    members: list[list[int]] = [list(range(rack, brokers, racks)) for rack in range(racks)]
    found = []
    for number in range(partitions):
        chosen = random.sample(range(racks), factor)
        replicas = tuple(random.choices(members[rack], [weights[one] for one in members[rack]])[0] for rack in chosen)
        size, bytes_in = int(random.lognormvariate(20, 1.5)), int(random.lognormvariate(9, 1.5))
        found.append(
            Partition(
                f"topic-{number // 50:05d}", number % 50, replicas, replicas[0], size, bytes_in, bytes_in * factor
            )
        )
    disk = 10**13
    return Cluster(
        tuple(Broker(number, f"rack-{number % racks}", disk, disk * 8 // 10) for number in range(brokers + added)),
        tuple(found),
    )
