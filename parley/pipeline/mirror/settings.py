"""The settings of a mirror, from an ``mm2.properties`` file (KIP-382) or the flags of the first MirrorMaker.

The file names clusters (``clusters = A, B``), their addresses (``A.bootstrap.servers``), the enabled flows
(``A->B.enabled = true``) and their settings: a key applies to all flows, or to one flow if it begins with ``A->B.``.
Keys and defaults are MirrorMaker 2's. If its default number of replicas exceeds the number of the target's brokers, the
latter is used. A number in the file is used unchanged.

Settings that only Connect needs (``tasks.max``, converters, names of storage topics) and unknown keys are accepted, and
reported as without effect (``MirrorSettings.ignored``). A class written by the user is refused, because without it the
mirror would copy something else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from itertools import permutations
from typing import Any, Final

from parley.pipeline.mirror.naming import DEFAULT_POLICY, IDENTITY_POLICY, ReplicationPolicy, Selection, TopicChoice
from parley.pipeline.mirror.topics import SettingsChoice
from parley.protocol.security.client_security import NO_SECURITY, SecurityProperties

TOPICS_EXCLUDED: Final = r"mm2.*\.internal, .*\.replica, __.*"
GROUPS_EXCLUDED: Final = "console-consumer-.*, connect-.*, __.*"
SETTINGS_EXCLUDED: Final = (
    r"follower\.replication\.throttled\.replicas, leader\.replication\.throttled\.replicas, "
    r"message\.timestamp\.difference\.max\.ms, log\.message\.timestamp\.before\.max\.ms, "
    r"log\.message\.timestamp\.after\.max\.ms, message\.timestamp\.type, unclean\.leader\.election\.enable, "
    r"min\.insync\.replicas"
)
_SECURITY: Final = ("security.protocol", "sasl.", "ssl.")
_FILTERS: Final = {
    "topic.filter.class": "DefaultTopicFilter",
    "group.filter.class": "DefaultGroupFilter",
    "config.property.filter.class": "DefaultConfigPropertyFilter",
}
"""The settings that name classes for choosing what is copied, with the only class that each may name."""


class BadSettings(ValueError):
    """Raised for invalid settings. The message names them, and says what to write."""


def _boolean(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.strip().lower() == "true"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError("must be a number of seconds above 0")
    return value


def _replicas(text: str) -> int:
    if not re.fullmatch(r"-1|[1-9]\d{0,4}", text.strip()):
        raise ValueError("must be a number of replicas, or -1 for the target's default")
    return int(text)


def _one_of(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip() not in values:
            raise ValueError(f"must be one of {', '.join(values)}")
        return text.strip()

    return parse


_CONSUMER_KEYS: Final = ("isolation.level", "auto.offset.reset")
"""The consumer settings that are used, with the prefix ``consumer.``, ``source.consumer.`` or ``A.consumer.``."""
_READ: Final = (
    "clusters", "bootstrap.servers", "replication.policy.class", "replication.policy.separator",
    "replication.policy.internal.topic.separator.enabled",
)  # fmt: skip
"""The other settings that are used."""
_ADDRESSES: Final = ("bootstrap.servers", "metadata.broker.list")


def _key(default: Any, parse: Callable[[str], Any], *names: str) -> Any:
    """Return a field of ``Choices`` with the names of its setting, and with the function that parses the setting."""
    return field(default=default, metadata={"names": names, "parse": parse})


@dataclass(frozen=True, slots=True)
class Choices:
    """The settings of one flow, with MirrorMaker 2's keys and defaults. Times are in seconds."""

    enabled: bool = _key(False, _boolean, "enabled")
    topics: str = _key(".*", str, "topics")
    topics_exclude: str = _key(TOPICS_EXCLUDED, str, "topics.exclude", "topics.blacklist")
    groups: str = _key(".*", str, "groups")
    groups_exclude: str = _key(GROUPS_EXCLUDED, str, "groups.exclude", "groups.blacklist")
    settings_exclude: str = _key(SETTINGS_EXCLUDED, str, "config.properties.exclude", "config.properties.blacklist")
    use_defaults_from: str = _key("target", _one_of("source", "target"), "use.defaults.from")
    replicas: int = _key(2, _replicas, "replication.factor")
    offset_syncs_replicas: int = _key(3, _replicas, "offset-syncs.topic.replication.factor")
    checkpoints_replicas: int = _key(3, _replicas, "checkpoints.topic.replication.factor")
    heartbeats_replicas: int = _key(3, _replicas, "heartbeats.topic.replication.factor")
    offset_syncs_at: str = _key("source", _one_of("source", "target"), "offset-syncs.topic.location")
    emit_offset_syncs: bool = _key(True, _boolean, "emit.offset-syncs.enabled")
    refresh_topics: bool = _key(True, _boolean, "refresh.topics.enabled")
    refresh_topics_s: float = _key(600, _seconds, "refresh.topics.interval.seconds")
    sync_settings: bool = _key(True, _boolean, "sync.topic.configs.enabled")
    sync_settings_s: float = _key(600, _seconds, "sync.topic.configs.interval.seconds")
    refresh_groups: bool = _key(True, _boolean, "refresh.groups.enabled")
    refresh_groups_s: float = _key(600, _seconds, "refresh.groups.interval.seconds")
    emit_checkpoints: bool = _key(True, _boolean, "emit.checkpoints.enabled")
    emit_checkpoints_s: float = _key(60, _seconds, "emit.checkpoints.interval.seconds")
    sync_groups: bool = _key(False, _boolean, "sync.group.offsets.enabled")
    sync_groups_s: float = _key(60, _seconds, "sync.group.offsets.interval.seconds")
    emit_heartbeats: bool = _key(True, _boolean, "emit.heartbeats.enabled")
    emit_heartbeats_s: float = _key(1, _seconds, "emit.heartbeats.interval.seconds")
    copy_heartbeats: bool = _key(True, _boolean, "heartbeats.replication.enabled")
    isolation: str = _key("read_uncommitted", _one_of("read_uncommitted", "read_committed"), "isolation.level")
    reset: str = _key("earliest", _one_of("earliest", "latest"), "auto.offset.reset")


_KEYS: Final[Mapping[str, Field[Any]]] = {name: one for one in fields(Choices) for name in one.metadata["names"]}
"""The fields of ``Choices``, by the names of their settings."""


@dataclass(frozen=True, slots=True)
class ClusterName:
    """A cluster: its alias, which becomes part of names, and its bootstrap addresses."""

    alias: str
    bootstrap: str
    security: SecurityProperties = NO_SECURITY


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """A flow from one cluster to another. ``given`` are the keys in the file; all others have their defaults."""

    source: ClusterName
    target: ClusterName
    choices: Choices
    policy: ReplicationPolicy = field(default_factory=ReplicationPolicy)
    given: frozenset[str] = frozenset()
    commits_as: str | None = None
    """The group of the source that commits the copied offsets, as the first MirrorMaker does; None for
    MirrorMaker 2.
    """

    @property
    def name(self) -> str:
        return f"{self.source.alias}->{self.target.alias}"

    @property
    def topics(self) -> TopicChoice:
        selection = Selection(self.choices.topics, self.choices.topics_exclude)
        return TopicChoice(self.policy, selection, self.target.alias, self.choices.copy_heartbeats)

    @property
    def groups(self) -> Selection:
        return Selection(self.choices.groups, self.choices.groups_exclude)

    @property
    def topic_settings(self) -> SettingsChoice:
        return SettingsChoice(Selection(self.choices.settings_exclude), self.choices.use_defaults_from == "source")

    @property
    def offset_syncs_at_source(self) -> bool:
        return self.choices.offset_syncs_at == "source"

    @property
    def offset_syncs_topic(self) -> str:
        """The topic of offset syncs. Its name contains the other cluster (KIP-716)."""
        return self.policy.offset_syncs((self.target if self.offset_syncs_at_source else self.source).alias)

    def replicas(self, key: str, brokers: int) -> int:
        """Return the number of replicas of a new topic on a cluster with this many brokers. ``key`` is the setting for
        this kind of topic.
        """
        wanted: int = getattr(self.choices, _KEYS[key].name)
        return wanted if key in self.given else min(wanted, brokers)


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """All flows, and the given keys that have no effect."""

    flows: tuple[FlowSettings, ...]
    ignored: tuple[str, ...] = ()


def from_mm2(properties: Mapping[str, str], clusters: Iterable[str] = ()) -> MirrorSettings:
    """Return the settings of an ``mm2.properties`` file. Raises BadSettings.

    ``clusters`` limits the result to flows whose target is in it; empty means all flows.
    """
    aliases = [alias for alias in (part.strip() for part in properties.get("clusters", "").split(",")) if alias]
    if len(aliases) < 2:
        raise BadSettings("clusters must name at least two clusters, as in: clusters = A, B")
    chosen = set(clusters)
    if chosen - set(aliases):
        raise BadSettings(
            f"{', '.join(sorted(chosen - set(aliases)))}: unknown cluster. clusters = {', '.join(aliases)}"
        )
    names = {alias: _cluster(alias, properties) for alias in aliases}
    flows = []
    for source, target in permutations(aliases, 2):
        flow = _flow(names[source], names[target], properties)
        wanted = flow.choices.enabled or flow.choices.emit_heartbeats
        if wanted and (not chosen or target in chosen):
            flows.append(flow)
    if not any(flow.choices.enabled for flow in flows):
        raise BadSettings(f"no flow is enabled. For example, set {aliases[0]}->{aliases[1]}.enabled = true")
    return _checked(flows, _ignored(aliases, properties))


def _cluster(alias: str, properties: Mapping[str, str]) -> ClusterName:
    bootstrap = properties.get(f"{alias}.bootstrap.servers", "").strip()
    if not bootstrap:
        raise BadSettings(f"{alias}.bootstrap.servers is missing: set it to host:port")
    return ClusterName(alias, bootstrap, _security({**properties, **_of_cluster(alias, properties)}, f"{alias}."))


def _of_cluster(alias: str, properties: Mapping[str, str]) -> dict[str, str]:
    prefix = f"{alias}."
    return {key.removeprefix(prefix): value for key, value in properties.items() if key.startswith(prefix)}


def _security(properties: Mapping[str, str], where: str) -> SecurityProperties:
    """Return TLS and login settings. Raises BadSettings if they cannot be used. ``where`` is their prefix, for the
    message.
    """
    security = SecurityProperties.of(properties)
    try:
        security.read()
    except ValueError as error:
        raise BadSettings(f"{where}security.protocol and related keys: {error}") from None
    return security


def _flow(source: ClusterName, target: ClusterName, properties: Mapping[str, str]) -> FlowSettings:
    prefix = f"{source.alias}->{target.alias}."
    found = {
        key: value for key, value in properties.items() if key in _KEYS and key not in ("enabled", *_CONSUMER_KEYS)
    }
    for where in ("consumer.", "source.consumer.", f"{source.alias}.consumer.", f"{prefix}consumer.",
                  f"{prefix}source.consumer."):  # fmt: skip
        found |= {key: properties[where + key] for key in _CONSUMER_KEYS if where + key in properties}
    found |= {key[len(prefix) :]: value for key, value in properties.items() if key.startswith(prefix)}
    values: dict[str, Any] = {}
    for key, text in found.items():
        if key in _KEYS:
            try:
                values[_KEYS[key].name] = _KEYS[key].metadata["parse"](text)
            except ValueError as error:
                raise BadSettings(f"{key} {error}, not {text!r}") from None
    policy = _policy(source, {**properties, **found})
    flow = FlowSettings(source, target, Choices(**values), policy, frozenset(found) & _KEYS.keys())
    try:
        _ = flow.topics, flow.groups, flow.topic_settings
    except ValueError as error:
        raise BadSettings(f"{flow.name}: {error}") from None
    return flow


def _policy(source: ClusterName, properties: Mapping[str, str]) -> ReplicationPolicy:
    kind = properties.get("replication.policy.class", DEFAULT_POLICY).strip()
    separator = properties.get("replication.policy.separator", ".").strip()
    if kind.rpartition(".")[2] not in (DEFAULT_POLICY.rpartition(".")[2], IDENTITY_POLICY.rpartition(".")[2]):
        raise BadSettings(f"replication.policy.class must be {DEFAULT_POLICY} or {IDENTITY_POLICY}, not {kind}")
    if not separator:
        raise BadSettings("replication.policy.separator must not be empty, because names would be ambiguous")
    internal = properties.get("replication.policy.internal.topic.separator.enabled", "true")
    identity = kind.endswith("IdentityReplicationPolicy")
    return ReplicationPolicy(
        separator, separator if _boolean(internal) else ".", identity_of=source.alias if identity else None
    )


def _checked(flows: list[FlowSettings], ignored: list[str]) -> MirrorSettings:
    on = {(flow.source.alias, flow.target.alias): flow for flow in flows if flow.choices.enabled}
    for (source, target), flow in on.items():
        if flow.policy.identity_of and (target, source) in on:
            raise BadSettings(
                f"{source} and {target} would copy each other's records forever: with the identity policy, names do "
                "not show the origin of a record. Disable one of the two flows, or use the default policy"
            )
    return MirrorSettings(tuple(flows), tuple(ignored))


def _ignored(aliases: list[str], properties: Mapping[str, str]) -> list[str]:
    """Return the keys without effect. Raises BadSettings for unsupported keys that would have an effect."""
    prefixes = [f"{source}->{target}." for source, target in permutations(aliases, 2)] + [f"{one}." for one in aliases]
    ignored = []
    for key in sorted(properties):
        prefix = next((each for each in prefixes if key.startswith(each)), "")
        bare, value = key[len(prefix) :], properties[key].strip()
        last = bare.removeprefix("source.").removeprefix("target.").removeprefix("consumer.").removeprefix("producer.")
        if bare.startswith(_SECURITY) and "->" not in prefix:
            continue  # read for the cluster
        if last.removeprefix("admin.").startswith(_SECURITY):
            raise BadSettings(f"{key}: set it for the whole cluster, as <alias>.{last.removeprefix('admin.')}")
        if bare in _FILTERS:
            if value.rpartition(".")[2] != _FILTERS[bare]:
                raise BadSettings(
                    f"{key}: {value} is a Java class, which cannot be loaded; choose by name instead, with topics, "
                    "topics.exclude, groups, groups.exclude and config.properties.exclude"
                )
        elif (bare, value.lower()) == ("sync.topic.acls.enabled", "false"):
            continue  # the mirror behaves like this
        elif not (bare in _KEYS or bare in _READ or (last in _CONSUMER_KEYS and bare != last)):
            ignored.append(key)
    return ignored


def from_mm1(
    consumers: Iterable[Mapping[str, str]], producer: Mapping[str, str], include: str, exclude: str = ""
) -> MirrorSettings:
    """Return the settings for the first MirrorMaker's flags. Topics keep their names, and each consumer's group commits
    the progress.

    ``consumers`` are the properties of the consumers, one for each source. Raises BadSettings.
    """
    target = ClusterName("target", _address(producer, "--producer.config"), _security(producer, "--producer.config: "))
    flows = []
    ignored = {key for key in producer if key not in _ADDRESSES and not key.startswith(_SECURITY)}
    for number, consumer in enumerate(consumers, start=1):
        where = "--consumer.config"
        source = ClusterName(f"source{number}", _address(consumer, where), _security(consumer, f"{where}: "))
        choices = Choices(
            enabled=True,
            topics=include or ".*",
            topics_exclude=exclude or TOPICS_EXCLUDED,
            emit_heartbeats=False,
            copy_heartbeats=False,
            emit_checkpoints=False,
            sync_settings=False,
            emit_offset_syncs=False,
            reset="earliest" if consumer.get("auto.offset.reset", "latest") in ("earliest", "smallest") else "latest",
            isolation=consumer.get("isolation.level", "read_uncommitted"),
        )
        policy = ReplicationPolicy(identity_of=source.alias)
        flows.append(FlowSettings(source, target, choices, policy, commits_as=consumer.get("group.id")))
        known = (*_ADDRESSES, *_CONSUMER_KEYS, "group.id")
        ignored |= {key for key in consumer if key not in known and not key.startswith(_SECURITY)}
    return _checked(flows, sorted(ignored))


def _address(properties: Mapping[str, str], option: str) -> str:
    address = next((properties[key] for key in _ADDRESSES if properties.get(key)), "")
    if not address.strip():
        hint = (
            " (zookeeper.connect is obsolete: the mirror connects to brokers, not to ZooKeeper)"
            if "zookeeper.connect" in properties
            else ""
        )
        raise BadSettings(f"the file of {option} has no bootstrap.servers{hint}")
    return address.strip()
