"""Elections that a controller left unfinished, or that a lower ``min.insync.replicas`` requires."""

from __future__ import annotations

from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.controller.elections.leader_choice import elect_leader
from parley.broker.metadata.changes import Change, PartitionChanged
from parley.broker.metadata.image import MetadataImage


def reconcile_leaders(image: MetadataImage, rules: RulesOf) -> Decision[None]:
    """Elect leaders, shrink ISRs and clear ELRs to match the live brokers and the current configuration.

    Registering or fencing a broker already does this. This decision is for changes that a controller left unfinished
    when it died between two transactions, and for topics whose ``min.insync.replicas`` was lowered: their leaders do
    not advance the high watermark until the ELR is cleared.
    """
    live = image.live_broker_ids()
    changes: list[Change] = []
    for name, topic in image.topics.items():
        unsettled = [
            (index, state)
            for index, state in enumerate(topic.partitions)
            if state.relies_on_elr or state.leader not in live or not live.issuperset(state.isr)
        ]
        if not unsettled:
            continue
        min_isr = rules(image, name).min_insync_replicas
        for index, state in unsettled:
            elected = elect_leader(state, live, min_isr)
            if elected is not state:
                changes.append(PartitionChanged(name, index, elected))
    return Decision(tuple(changes), None)
