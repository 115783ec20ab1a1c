"""Decisions about configuration: replace all entries of a resource (KIP-133), or change some of them (KIP-339)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from parley.broker.config.dynamic_changes import EntryChange, Operation
from parley.broker.config.sealed_passwords import PREFIX
from parley.broker.controller.decision import Decision
from parley.broker.metadata.changes import Change, ConfigReplaced
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_ENTRIES, ConfigResource, ResourceType
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError

ENTRIES_MAX = 1_000
"""The maximum number of configuration entries for one resource in a request. All entries of a resource are validated
together, so this limits the work. No valid request needs more: there are fewer keys."""


def check_number_of_entries(count: int) -> None:
    """Raise INVALID_REQUEST if a request has more than ``ENTRIES_MAX`` entries of one resource."""
    if count > ENTRIES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"A request can contain at most {ENTRIES_MAX} configuration entries per resource.",
        )


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A requested change to the entries of one resource. ``replacement`` contains all the new entries; if it is None,
    ``changes`` are made to the present entries."""

    resource: ConfigResource
    replacement: Mapping[str, str] | None = field(default=None, repr=False)
    changes: Sequence[EntryChange] = ()


@dataclass(frozen=True, slots=True)
class ConfigOutcome:
    """The outcome of the change to one resource: an error, or None if it succeeded."""

    resource: ConfigResource
    error: KafkaError | None = None


ValidateEntries = Callable[[ConfigResource, Mapping[str, str]], Mapping[str, str]]
"""Validates all entries of a resource, and returns them as they are stored, with passwords encrypted.

Raises KafkaError (INVALID_CONFIG, INVALID_REQUEST, POLICY_VIOLATION) if these entries are not allowed for the resource.
"""

CurrentList = Callable[[ConfigResource, str], list[str]]
"""Returns the current elements of a list, including defaults. Raises INVALID_CONFIG if the key is not a list."""


def alter_configs(
    image: MetadataImage,
    wanted: Sequence[ConfigChange],
    *,
    validate: ValidateEntries,
    current_list: CurrentList,
    validate_only: bool = False,
) -> Decision[list[ConfigOutcome]]:
    """Change the entries of each resource, or only validate the changes if ``validate_only``.

    Returns one outcome for each resource, with the error if its change is invalid.
    """
    changes: list[Change] = []
    outcomes = []
    for change in wanted:
        try:
            _check_exists(image, change.resource)
            present = image.configs.get(change.resource, NO_ENTRIES)
            entries = entries_after(change, present, current_list)
            _check_not_sealed(change.resource, entries, present)
            entries = dict(validate(change.resource, entries))
        except KafkaError as error:
            outcomes.append(ConfigOutcome(change.resource, error))
            continue
        outcomes.append(ConfigOutcome(change.resource))
        if entries != present:
            changes.append(ConfigReplaced(change.resource, entries))
    return Decision(() if validate_only else tuple(changes), outcomes)


def _check_exists(image: MetadataImage, resource: ConfigResource) -> None:
    if resource.type is ResourceType.TOPIC and resource.name not in image.topics:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{resource.name}' does not exist.")
    if resource.type is ResourceType.BROKER and resource.name and resource not in image.configs:
        _check_is_broker(image, resource.name)


def _check_is_broker(image: MetadataImage, name: str) -> None:
    if any(name == str(broker_id) for broker_id in image.brokers):
        return
    if not name.isdecimal():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"'{name}' is not a broker id.")
    raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {name} is not registered.")


def _check_not_sealed(resource: ConfigResource, entries: Mapping[str, str], present: Mapping[str, str]) -> None:
    """Raise INVALID_CONFIG if a client sets a value that looks like an encrypted password, which brokers would try to
    decrypt."""
    if resource.type is not ResourceType.BROKER:
        return
    for name, text in entries.items():
        if text.startswith(PREFIX) and text != present.get(name):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"The value of {name} begins with {PREFIX}, which marks encrypted passwords: use another value.",
            )


def entries_after(change: ConfigChange, present: Mapping[str, str], current_list: CurrentList) -> dict[str, str]:
    """Return the entries of a resource after a change.

    Raises INVALID_CONFIG if a value is null, or if the change appends to or subtracts from a key that is not a list.
    """
    if change.replacement is not None:
        return dict(change.replacement)
    entries = dict(present)
    for entry in change.changes:
        if entry.operation is Operation.DELETE:
            entries.pop(entry.name, None)
            continue
        if entry.value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for {entry.name}.")
        if entry.operation is Operation.SET:
            entries[entry.name] = entry.value
            continue
        given = entry.value.split(",")
        elements = current_list(change.resource, entry.name)
        if entry.operation is Operation.APPEND:
            known = set(elements)  # lists can contain thousands of elements
            elements += [element for element in given if element not in known]
        else:
            removed = set(given)
            elements = [element for element in elements if element not in removed]
        entries[entry.name] = ",".join(elements)
    return entries
