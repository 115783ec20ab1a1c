"""Decisions about brokers: registration, fencing, failed disks, controlled shutdown, removal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from parley.broker.controller.broker_reports import BrokerReport
from parley.broker.controller.decision import Decision
from parley.broker.controller.distrusted_partitions import distrust_outdated, raise_epochs
from parley.broker.controller.elections.election_rules import ElectionRules, RulesOf
from parley.broker.controller.elections.leader_choice import elect_leader
from parley.broker.controller.elections.replica_conditions import Condition, ConditionOf, conditions, lost_if_missing
from parley.broker.controller.elections.unclean_leader_choice import Recovery, needs_recovery, recover_leader
from parley.broker.metadata.changes import BrokerRegistered, BrokerUnregistered, Change, PartitionChanged
from parley.broker.metadata.feature_support import check_can_read
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.terms import NO_TERM
from parley.broker.metadata.types import NO_LEADER, BrokerRegistration
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.uuids import UUID


def register_broker(
    image: MetadataImage, registration: BrokerRegistration, report: BrokerReport | None, rules: RulesOf
) -> Decision[list[Recovery]]:
    """Register a broker under a new epoch. Return the recoveries of partitions whose only replica is on this broker.

    ``report`` describes the broker's logs; it is None if the broker sent no report.

    If the same process returns under a new epoch (for example because its session expired while the store was
    unreachable), it keeps its leaderships and its unharmed replicas. If another process takes over the broker id, the
    broker is fenced first, so that a restarted leader never continues under its old leader epoch. Replicas that may
    have lost records leave the ISR and the ELR (``elections/replica_conditions.py``). If the broker reports a higher
    leader epoch of a partition than the store contains, a recovery elects its leader (``distrusted_partitions.py``).

    A registration whose epoch is not higher than the known epoch changes nothing. A fenced broker can only return under
    a higher epoch.

    Raises UNSUPPORTED_VERSION if the broker cannot read the cluster's metadata.
    """
    check_can_read(image, registration)
    known = image.brokers.get(registration.broker_id)
    if known is not None and registration.epoch <= known.epoch:
        return Decision((), [])
    changes: list[Change] = [*raise_epochs(image, registration.broker_id, registration.seen_leader_epoch)]
    if changes:
        image = image.with_changes(changes)
    outdated = [] if report is None else distrust_outdated(image, registration.broker_id, report)
    if outdated:
        changes += outdated
        image = image.with_changes(changes)
    joined = replace(registration, fenced=False, seen=NO_TERM, seen_leader_epoch=NO_EPOCH)
    is_live = known is not None and not known.fenced
    stays = is_live and known is not None and known.incarnation_id == registration.incarnation_id
    if is_live and not stays:
        changes += fence_broker(image, registration.broker_id, rules).changes
        image = image.with_changes(changes)
    arrival = BrokerRegistered(joined)
    after = image.with_changes((arrival,))
    condition = conditions(known, joined, report, directories_count=not outdated)
    if condition is None and report is not None:
        condition = lost_if_missing(report)
    if condition is None:
        elections = [] if stays else _elections(after, joined.broker_id, rules)
        return Decision(_last_changes((*changes, arrival, *elections)), [])
    elections, recoveries = _elections_after_loss(after, joined.broker_id, condition, report, rules, stays=stays)
    return Decision(_last_changes((*changes, arrival, *elections)), recoveries)


def fence_broker(image: MetadataImage, broker_id: int, rules: RulesOf, *, epoch: int | None = None) -> Decision[bool]:
    """Fence a broker: it keeps its epoch, and its leaderships move to live replicas in the ISR or the ELR.

    If ``epoch`` is given, the broker is fenced only while this is its current epoch. Returns True if this call fenced
    the broker.

    The fenced registration is written to the store after the elections. Otherwise, if the writes were interrupted
    halfway and the broker returned, the next controller would assume that all of its leaderships had been moved.
    """
    known = image.brokers.get(broker_id)
    if known is None or known.fenced or epoch not in (None, known.epoch):
        return Decision((), False)
    fenced = BrokerRegistered(replace(known, fenced=True))
    after = image.with_changes((fenced,))
    return Decision((*_elections(after, broker_id, rules), fenced), True)


def take_replicas_offline(
    image: MetadataImage, broker_id: int, epoch: int, replicas: Iterable[tuple[UUID, int]], rules: RulesOf
) -> Decision[None]:
    """Remove a live broker's replicas from ISR and ELR after their disk has failed, and elect other leaders.

    ``replicas`` are pairs of topic id and partition; unknown pairs are ignored. Raises STALE_BROKER_EPOCH unless the
    broker is registered under this epoch.
    """
    check_broker_epoch(image, broker_id, epoch)
    live = image.live_broker_ids()
    changes: list[Change] = []
    for topic, index, state in image.named(replicas):
        if broker_id in state.replicas:
            min_isr = rules(image, topic).min_insync_replicas
            elected = elect_leader(state, live, min_isr, suspect=(broker_id,))
            if elected.leader != NO_LEADER:  # a later recovery must not wait for this disk
                elected = elect_leader(state, live, min_isr, lost=(broker_id,))
            if elected is not state:
                changes.append(PartitionChanged(topic, index, elected))
    return Decision(tuple(changes), None)


def hand_over_leadership(
    image: MetadataImage, broker_id: int, epoch: int, rules: RulesOf
) -> Decision[list[tuple[str, int]]]:
    """Controlled shutdown: move a broker's leaderships before it stops, and fence it.

    The broker leaves every ISR. Returns the partitions that have no leader until the broker returns. Raises
    BROKER_ID_NOT_REGISTERED for an unknown broker, and STALE_BROKER_EPOCH if ``epoch`` is not its current epoch.
    """
    _registered(image, broker_id)
    check_broker_epoch(image, broker_id, epoch)
    changes = fence_broker(image, broker_id, rules).changes
    remaining = [
        (topic, index)
        for topic, index, state in image.with_changes(changes).partitions()
        if state.leader == NO_LEADER and broker_id in state.elr
    ]
    return Decision(changes, remaining)


def unregister_broker(image: MetadataImage, broker_id: int) -> Decision[None]:
    """Remove the registration of a broker that will not return (KIP-631).

    The broker remains a replica of its partitions until they are reassigned. Raises BROKER_ID_NOT_REGISTERED for an
    unknown broker, and INVALID_REQUEST if the broker is alive, because it would register again.
    """
    if not _registered(image, broker_id).fenced:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker {broker_id} is alive: stop it before you unregister it.")
    return Decision((BrokerUnregistered(broker_id),), None)


def check_broker_epoch(image: MetadataImage, broker_id: int, epoch: int) -> None:
    """Raise STALE_BROKER_EPOCH unless the broker is registered under ``epoch``."""
    known = image.brokers.get(broker_id)
    if known is None:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} is not registered.")
    if epoch != known.epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} is registered with epoch {known.epoch}, not {epoch}."
        )


def _elections_after_loss(
    image: MetadataImage,
    broker_id: int,
    condition: ConditionOf,
    report: BrokerReport | None,
    rules: RulesOf,
    *,
    stays: bool,
) -> tuple[list[Change], list[Recovery]]:
    """Return the elections that follow the registration of a broker whose replicas may have lost records.

    ``stays`` means that the same process has registered again: its unharmed replicas need no election. A partition
    whose only replica is on this broker recovers immediately. The other partitions that need a recovery wait for it
    (``elections/unclean_recovery.py``).
    """
    live = image.live_broker_ids()
    changes: list[Change] = []
    recoveries = []
    for topic in image.topics.values():
        topic_rules: ElectionRules | None = None
        for index, state in enumerate(topic.partitions):
            if broker_id not in state.replicas:
                continue
            if topic_rules is None:
                topic_rules = rules(image, topic.name)
            found = condition(topic.topic_id, index, state)
            if stays and found is Condition.UNHARMED:
                continue
            suspect = (broker_id,) if found is Condition.SUSPECT else ()
            lost = (broker_id,) if found is Condition.LOST else ()
            elected = elect_leader(state, live, topic_rules.min_insync_replicas, suspect=suspect, lost=lost)
            if report and state.replicas == (broker_id,) and needs_recovery(elected, topic_rules.recovery):
                own = {broker_id: report.replica(topic.topic_id, index)}
                elected, choice = recover_leader(elected, own, topic_rules, topic_rules.recovery)
                recoveries.append(Recovery(topic.name, index, choice, own))
            if elected is not state:
                changes.append(PartitionChanged(topic.name, index, elected))
    return changes, recoveries


def _elections(image: MetadataImage, broker_id: int, rules: RulesOf) -> list[Change]:
    """Return the changes in leader, ISR and ELR that follow from a broker's arrival or departure in ``image``."""
    live = image.live_broker_ids()
    changes: list[Change] = []
    for topic in image.topics.values():
        min_isr: int | None = None
        for index, state in enumerate(topic.partitions):
            if broker_id not in state.replicas:
                continue
            if min_isr is None:
                min_isr = rules(image, topic.name).min_insync_replicas
            elected = elect_leader(state, live, min_isr)
            if elected is not state:
                changes.append(PartitionChanged(topic.name, index, elected))
    return changes


def _last_changes(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return the changes with only the last state of each partition.

    A broker that returns under the same id loses its leaderships and gets most of them back, under higher leader
    epochs, in one decision. The last state of a partition takes the place of its first change, so that the order of
    the writes to the store does not change.
    """
    last: dict[int | tuple[str, int], Change] = {}
    for number, change in enumerate(changes):
        last[(change.topic, change.partition) if isinstance(change, PartitionChanged) else number] = change
    return tuple(last.values())


def _registered(image: MetadataImage, broker_id: int) -> BrokerRegistration:
    known = image.brokers.get(broker_id)
    if known is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {broker_id} is not registered.")
    return known
