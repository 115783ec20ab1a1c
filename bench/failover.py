"""``python -m bench.failover``: the death of a broker that leads a third of the partitions, compared with Apache Kafka.

There are three brokers, with topics of 1,000 partitions and replication factor 3. ``kill -9`` ends a broker, and a
client requests the metadata of all topics from another one until no partition has the dead broker as its leader. The
processor time is that of the two other brokers, until then and for the work that follows. The first broker to die is
not the controller. It starts again, and the time until it is in every ISR is measured, too.
"""

from __future__ import annotations

import time

from bench.cluster import clusters
from bench.clusters import Measured
from bench.creation import METADATA_VERSION, PER_REQUEST, Client, new_topics
from bench.figures import Figures, report
from bench.replication import BROKERS, ReplicatedCluster
from bench.turns import in_turns, turns_parser
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse

PATIENCE_S = 300.0
POLL_S = 0.02
QUIET_S = 3.0
"""How long to wait for background work, in seconds. The processor time of that work counts."""


def metadata(client: Client) -> MetadataResponse:
    """Return the metadata of all topics."""
    response, _ = client.ask(MetadataRequest(topics=None), METADATA_VERSION)
    assert isinstance(response, MetadataResponse)
    return response


def wait_until(client: Client, partitions: int, *, dead: int | None) -> float:
    """Wait until all partitions have a leader other than the broker ``dead``, or, if ``dead`` is None, a leader and a
    complete ISR. Returns the seconds. Raises SystemExit after ``PATIENCE_S``."""
    began = time.perf_counter()
    while time.perf_counter() - began < PATIENCE_S:
        states = [each for topic in metadata(client).topics for each in topic.partitions]
        if dead is None:
            good = sum(each.leader_id >= 0 and len(each.isr_nodes) == BROKERS for each in states)
        else:
            good = sum(each.leader_id not in (-1, dead) for each in states)
        if good >= partitions:
            return time.perf_counter() - began
        time.sleep(POLL_S)
    raise SystemExit(f"{partitions - good} of {partitions} partitions are not as expected")


def measure(cluster: ReplicatedCluster, partitions: int, figures: Figures) -> None:
    """Measure a cluster for one turn, and add the results to ``figures``."""
    client = Client(cluster.bootstrap)
    for number in range(partitions // PER_REQUEST):
        client.ask(new_topics(f"topic-{number}", 1, PER_REQUEST, BROKERS), 7)
    wait_until(client, partitions, dead=None)
    time.sleep(QUIET_S)
    controller = metadata(client).controller_id
    victim = next(number for number in range(1, BROKERS + 1) if number != controller)
    others = [member for number, member in enumerate(cluster.members, 1) if number != victim]
    witness = Client(others[0].bootstrap)
    label = f"{partitions:,} partitions"
    process = cluster.members[victim - 1].process
    assert process is not None
    cpu = sum(map(Measured.cpu_seconds, others))
    process.kill()
    process.wait()
    figures[f"{label}: all have leaders again after, s", cluster.name].append(
        wait_until(witness, partitions, dead=victim)
    )
    time.sleep(QUIET_S)
    figures[f"{label}: CPU of both other brokers, s", cluster.name].append(sum(map(Measured.cpu_seconds, others)) - cpu)
    cpu = sum(map(Measured.cpu_seconds, others))
    cluster.members[victim - 1].start()
    figures[f"{label}: in every ISR again after, s", cluster.name].append(wait_until(witness, partitions, dead=None))
    figures[f"{label}: CPU of its start and return, s", cluster.name].append(
        cluster.members[victim - 1].cpu_seconds() + sum(map(Measured.cpu_seconds, others)) - cpu
    )


def main() -> None:
    parser = turns_parser("bench.failover", __doc__, rounds=3, of="cluster")
    parser.add_argument("--partitions", type=int, default=10_000, help="number of partitions in all")
    given = parser.parse_args()
    kinds = clusters(given.alone)
    report(in_turns(kinds, given.rounds, lambda cluster, figures: measure(cluster, given.partitions, figures)))


if __name__ == "__main__":
    main()
