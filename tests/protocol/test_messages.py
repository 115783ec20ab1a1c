"""Our messages compared with Apache Kafka's own definitions, field by field, so that none is forgotten."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from parley.protocol.messages import (
    APIS,
    api_by_name,
    headers,
    stored,
    stored_consumer_groups,
    stored_share_groups,
    stored_share_state,
    stored_streams_groups,
)
from parley.protocol.schema import ZERO_UUID, Data, FieldType, Header, Message, Struct, VersionRange
from tests.protocol.kafka_definitions import Field, Json, Reference, snake_case

# Kafka's messages that we omit, and why.
CONTROLLERS = "spoken by Kafka's controllers and brokers among themselves"
METADATA_LOG = "a record of Kafka's metadata log, which we do not have"
LEFT_OUT = {
    "LeaderAndIsr": CONTROLLERS,
    "StopReplica": CONTROLLERS,
    "UpdateMetadata": CONTROLLERS,
    "Vote": CONTROLLERS,
    "BeginQuorumEpoch": CONTROLLERS,
    "EndQuorumEpoch": CONTROLLERS,
    "FetchSnapshot": CONTROLLERS,
    "BrokerRegistration": CONTROLLERS,
    "BrokerHeartbeat": CONTROLLERS,
    "AllocateProducerIds": CONTROLLERS,
    "ControllerRegistration": CONTROLLERS,
    "UpdateRaftVoter": CONTROLLERS,
    "ListClientMetricsResources": "version 0 of ListConfigResources, under its old name",
    "KRaftVersionRecord": METADATA_LOG,
    "SnapshotHeaderRecord": METADATA_LOG,
    "SnapshotFooterRecord": METADATA_LOG,
    "VotersRecord": METADATA_LOG,
    "QuorumStateData": METADATA_LOG,
    "ProducerSnapshot": "a file that `parley.storage.producer_state` reads and writes",
    "LegacyOffsetCommitKey": "version 0 of OffsetCommitKey, under another name in newer releases",
    "LegacyOffsetCommitValue": "version 0 of OffsetCommitValue, under another name in newer releases",
}
# State of remote storage that a broker keeps for itself.
# ShareGroupPartitionMetadata and its counterpart for streams groups were only in early access releases.
LEFT_OUT_STATE = r"(StreamsGroupPartition|ShareGroupPartition|Remote)\w*(Key|Value|Record)"
# Versions that were only in early access releases of Kafka; and a version that only Kafka 0.8 sent, with
# a header unlike that of any other request.
LEFT_OUT_VERSIONS = {
    "ControlledShutdown": {0},
    "ShareGroupHeartbeat": {0},
    "ShareGroupDescribe": {0},
    "ShareFetch": {0},
    "ShareAcknowledge": {0},
}
# Kinds of stored records; the kind is the version of the key. Newer releases declare that differently.
KEY_KINDS = {"OffsetCommitKey": "LegacyOffsetCommitKey"}

JSON_TYPES = {
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u16": "uint16",
    "u32": "uint32",
    "f64": "float64",
    "bool": "bool",
    "str": "string",
    "uuid": "uuid",
    "bytes": "bytes",
    "records": "records",
}


def our_messages() -> dict[str, type[Message]]:
    """Return every message class, by name."""
    found: dict[str, type[Message]] = {}
    for api in APIS.values():
        found[api.request.__name__] = api.request
        found[api.response.__name__] = api.response
    for module in (
        headers,
        stored,
        stored_consumer_groups,
        stored_share_groups,
        stored_share_state,
        stored_streams_groups,
    ):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Message) and value not in (Data, Header):
                found[value.__name__] = value
    return found


MESSAGES = our_messages()
STORED_KEYS = ["OffsetCommitKey", "GroupMetadataKey", "TransactionLogKey"] + [
    name
    for module in (stored_consumer_groups, stored_share_groups, stored_share_state, stored_streams_groups)
    for name in vars(module)
    if re.fullmatch(r"(Consumer|Share|Streams)\w+Key", name)
]
OWN = {
    "DescribeBackgroundWorkRequest",
    "DescribeBackgroundWorkResponse",
    "FetchMetadataRequest",
    "FetchMetadataResponse",
    "HandOverLeadershipRequest",
    "HandOverLeadershipResponse",
    "MigrateCoordinationRequest",
    "MigrateCoordinationResponse",
    "ReportOfflineReplicasRequest",
    "StoreDelegationTokenRequest",
    "StoreDelegationTokenResponse",
    "ReportOfflineReplicasResponse",
    "VerifyLogsRequest",
    "VerifyLogsResponse",
}
"""Messages that Kafka lacks, which Parley's brokers send to each other."""
OWN_FIELDS = {
    "FetchRequest": {"stores_epochs", "topics.partitions.stored_epoch"},
    "FetchResponse": {"responses.partitions.must_store_epoch"},
    "InitializeShareGroupStateRequest": {"topics.partitions.leader_epoch"},
    "DeleteShareGroupStateRequest": {"topics.partitions.state_epoch"},
}
"""Tagged fields that only Parley's brokers send and read. Other implementations ignore them."""
LATER = {"GetReplicaLogInfoRequest", "GetReplicaLogInfoResponse"}
"""Messages that no Kafka release up to 4.3 contains; a test compares them with Kafka's development version."""
KAFKAS = {name: message for name, message in MESSAGES.items() if name not in OWN | LATER}


def api_name(message: str) -> str:
    return re.sub(r"(Request|Response)$", "", message)


def json_type(kind: FieldType) -> str:
    """Return a type as Kafka's definitions write it."""
    if kind.element is not None:
        return "[]" + json_type(kind.element)
    return kind.struct.__name__ if kind.struct is not None else JSON_TYPES[kind.kind]


def struct_of(kind: FieldType) -> type[Struct] | None:
    """Return the struct in a field, alone or in a list."""
    return kind.element.struct if kind.element is not None else kind.struct


def our_fields(struct: type[Struct], version: int, prefix: str = "") -> Iterator[tuple[str, Field]]:
    """Return the path and the properties of each field of this version, in wire order."""
    for field in struct.fields():
        if version in field.versions:
            path = prefix + field.name
            tag = field.tag if version in field.tagged else None
            yield path, Field(json_type(field.type), version in field.nullable, tag)
            inner = struct_of(field.type)
            if inner is not None:
                yield from our_fields(inner, version, path + ".")


def all_fields(struct: type[Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return the path and the object of each field of any version."""
    for field in struct.fields():
        yield prefix + field.name, field
        inner = struct_of(field.type)
        if inner is not None:
            yield from all_fields(inner, prefix + field.name + ".")


def versions_of(name: str, reference: Reference) -> set[int]:
    """Return the versions we should have."""
    return set(reference.valid) - LEFT_OUT_VERSIONS.get(api_name(name), set())


def is_stored_key(name: str) -> bool:
    return name in STORED_KEYS


def compared() -> list[str]:
    return [name for name in sorted(KAFKAS) if not is_stored_key(name)]


def zero_of(entry: Json) -> Any:
    """Kafka's value of a field without a declared default."""
    kind = entry["type"]
    if kind.startswith("[]"):
        return []
    plain = {"string": "", "bool": False, "uuid": ZERO_UUID, "bytes": b"", "records": None, "float64": 0.0}
    return plain.get(kind, 0)


def declared_default(entry: Json) -> Any:
    """Return the default that a definition declares, as our value."""
    default = entry["default"]
    if default == "null":
        return None
    if entry["type"] == "bool":
        return str(default).lower() == "true"
    return default if entry["type"] == "string" else int(str(default), 0)


@pytest.mark.system
def test_no_message_is_missing(kafka_messages: Mapping[str, Reference]) -> None:
    missing = {name for name in kafka_messages if name not in MESSAGES and not left_out(name)}
    assert not missing
    needless = {name for name in MESSAGES if left_out(name)} | {
        name for name in LEFT_OUT if not any(api_name(theirs) == name for theirs in kafka_messages)
    }
    assert not needless


def left_out(name: str) -> bool:
    return api_name(name) in LEFT_OUT or bool(re.fullmatch(LEFT_OUT_STATE, name))


@pytest.mark.system
def test_versions(kafka_messages: Mapping[str, Reference]) -> None:
    for name in compared():
        message, reference = MESSAGES[name], kafka_messages[name]
        expected = versions_of(name, reference)
        assert set(message.VERSIONS) == expected, name
        flexible = {version for version in expected if version in reference.at(version).flexible}
        assert {version for version in expected if message.is_flexible(version)} == flexible, name
        if hasattr(message, "API_KEY"):
            assert reference.key == message.API_KEY, name


@pytest.mark.system
def test_fields_of_each_version(kafka_messages: Mapping[str, Reference]) -> None:
    for name in compared():
        for version in MESSAGES[name].VERSIONS:
            ours = [each for each in our_fields(MESSAGES[name], version) if each[0] not in OWN_FIELDS.get(name, ())]
            theirs = list(kafka_messages[name].at(version).fields(version))
            assert ours == theirs, f"version {version} of {name}"


@pytest.mark.system
def test_defaults_and_ignorability(kafka_messages: Mapping[str, Reference]) -> None:
    for name in compared():
        check_defaults_and_ignorability(name, kafka_messages[name].entries())


def check_defaults_and_ignorability(name: str, entries: Mapping[str, Json]) -> None:
    for path, field in all_fields(MESSAGES[name]):
        if path in OWN_FIELDS.get(name, ()):
            continue
        entry, where = entries[path], f"{name}.{path}"
        assert field.ignorable == entry.get("ignorable", False), where
        assert field.compact == (entry.get("flexibleVersions") != "none"), where
        default = field.default()
        if entry.get("default") is not None:  # Kafka interprets a bare null as no default
            assert not field.required, f"{where} has a default in Kafka"
            assert default == declared_default(entry), where
        elif not isinstance(default, Struct):  # a struct's default is that of its fields
            allowed = [zero_of(entry)] + [None] * ("nullableVersions" in entry)
            assert default in allowed, where


@pytest.mark.system
@pytest.mark.parametrize("name", STORED_KEYS)
def test_keys_of_stored_records(name: str, kafka_messages: Mapping[str, Reference]) -> None:
    """The version of a key is its kind. In newer definitions, the kind is the `apiKey` of a message that has only
    version 0."""
    kinds = {}
    for source in (name, KEY_KINDS.get(name, name)):
        newest = kafka_messages[source].definitions[0]
        kinds[newest.source["apiKey"]] = list(newest.fields(0))
    assert {version: list(our_fields(MESSAGES[name], version)) for version in MESSAGES[name].VERSIONS} == kinds


def test_replica_log_info_has_the_fields_of_kafkas_development_version() -> None:
    """It also has tagged fields of Parley's own, with tags that Kafka does not use: other implementations
    ignore them."""
    request, response = MESSAGES["GetReplicaLogInfoRequest"], MESSAGES["GetReplicaLogInfoResponse"]
    assert request.API_KEY == 93  # type: ignore[attr-defined]
    assert [path for path, each in our_fields(request, 0) if each.tag is None] == [
        "topic_partitions",
        "topic_partitions.topic_id",
        "topic_partitions.partitions",
    ]
    lists = "topic_partition_log_info_list"
    assert [(path, each.type) for path, each in our_fields(response, 0) if each.tag is None] == [
        ("throttle_time_ms", "int32"),
        ("broker_epoch", "int64"),
        ("truncated", "bool"),
        (lists, "[]TopicPartitionLogInfo"),
        (f"{lists}.topic_id", "uuid"),
        (f"{lists}.partition_log_info", "[]PartitionLogInfo"),
        (f"{lists}.partition_log_info.partition", "int32"),
        (f"{lists}.partition_log_info.last_written_leader_epoch", "int32"),
        (f"{lists}.partition_log_info.current_leader_epoch", "int32"),
        (f"{lists}.partition_log_info.log_end_offset", "int64"),
        (f"{lists}.partition_log_info.error_code", "int16"),
    ]
    tags = [each.tag for message in (request, response) for _, each in our_fields(message, 0) if each.tag is not None]
    assert min(tags) >= 10000


def test_each_version_has_its_reason() -> None:
    for name, message in MESSAGES.items():
        assert message.__doc__, name
        reasons = {
            int(number) for number in re.findall(r"^ {4}(\d+): \S", inspect.cleandoc(message.__doc__), re.MULTILINE)
        }
        assert reasons == set(message.VERSIONS) - {message.VERSIONS.min}, name


def structs(message: type[Struct]) -> Iterator[type[Struct]]:
    """Yield the message's class and those of all structs in it."""
    yield message
    for _, field in all_fields(message):
        inner = struct_of(field.type)
        if inner is not None:
            yield inner


def test_each_struct_is_described() -> None:
    bare = {
        struct.__qualname__
        for message in MESSAGES.values()
        for struct in structs(message)
        if not vars(struct).get("__doc__")
    }
    assert not bare


def test_the_table_agrees_with_the_classes() -> None:
    for key, api in APIS.items():
        assert api.key == key
        assert api_by_name(api.name) is api
        assert api.request.API_KEY == api.response.API_KEY == key
        assert api.request.VERSIONS == api.response.VERSIONS
        assert api.request.FLEXIBLE == api.response.FLEXIBLE


def test_field_ranges_lie_within_the_message() -> None:
    for name, message in MESSAGES.items():
        for path, field in all_fields(message):
            for what in (field.versions, field.nullable, field.tagged):
                assert lies_within(what, message.VERSIONS), f"{name}.{path}: {what}"


def lies_within(inner: VersionRange, outer: VersionRange) -> bool:
    """Return True if ``inner`` lies within ``outer``. An open end ("0+") extends to the message's last version."""
    if inner.max < inner.min:
        return True
    return inner.min <= outer.max and (inner.max <= outer.max or "+" in repr(inner))


@pytest.mark.parametrize(
    ("name", "ours"),
    [("topicData", "topic_data"), ("Enable2Pc", "enable2_pc"), ("V3AndBelowTopics", "v3_and_below_topics")],
)
def test_names_follow_one_rule(name: str, ours: str) -> None:
    assert snake_case(name) == ours
