"""The shape of each command's ``--output json`` and ``--json``, for the documentation. Tests check it.

A shape is JSON with type names instead of values: ``string``, ``integer``, ``number``, ``boolean``, ``null``, ``any``,
or several of them separated by ``|``. A list contains a single element, the shape of all its elements. The key
``<name>`` means any key. A key that ends with ``?`` may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Shape = str | list[Any] | dict[str, Any]

_PARTITION: Final = {"topic": "string", "partition": "integer"}
_LATENCIES: Final = {"p50Ms": "integer", "p99Ms": "integer", "p999Ms": "integer"}
_SENT: Final = {
    "records": "integer",
    "recordsPerSec": "number",
    "mbPerSec": "number",
    "avgLatencyMs": "number",
    "maxLatencyMs": "integer",
    "p95Ms": "integer",
    **_LATENCIES,
}

_LOADS: Final = dict.fromkeys(("replicas", "leaders", "disk", "bytesIn", "bytesOut"), "integer")
_PLAN: Final = {
    "version": "integer",
    "partitions": [{**_PARTITION, "replicas": ["integer"], "log_dirs": ["string"]}],
}

_RECORD: Final = {
    **_PARTITION,
    "offset": "integer",
    "timestamp": "integer",
    "key": "string|number|boolean|null",
    "value": "string|number|boolean|null",
    "headers": [{"key": "string", "value": "string|number|boolean|null"}],
}
_DIAGNOSIS: Final = {
    "subject": "string",
    "exitCode": "integer",
    "checks": "integer",
    "findings": [
        {
            "name": "string",
            "severity": "string",
            "text": "string",
            "since": "string|null",
            "evidence": ["string"],
            "next": ["string"],
            "docs": "string",
        }
    ],
    "notExamined": [{"part": "string", "reason": "string", "failed": "boolean"}],
}

SHAPES: Final[Mapping[str, tuple[str, Shape]]] = {
    "topics --list": ("the topic names", ["string"]),
    "topics --describe": (
        "leader is null if there is none",
        [
            {
                "topic": "string",
                "topicId": "string",
                "configs": {"<name>": "string"},
                "partitions": [
                    {
                        "partition": "integer",
                        "leader": "integer|null",
                        "replicas": ["integer"],
                        "isr": ["integer"],
                        "elr?": ["integer"],
                        "lastKnownElr?": ["integer"],
                    }
                ],
            }
        ],
    ),
    "consume": ("one object per line; key and value have the types of their deserializers, text by default", _RECORD),
    "tail": ("one object per line", _RECORD),
    "top": (
        "numbers that are unknown are null; groupsLeftOut is the number of groups beyond the first 200",
        {
            "intervalMs": "integer",
            "underReplicated": "integer",
            "withoutLeader": "integer",
            "brokers": [
                {
                    "broker": "integer",
                    "address": "string",
                    "running": "boolean",
                    "controller": "boolean",
                    "leaders": "integer",
                    "replicas": "integer",
                    "bytes": "integer|null",
                }
            ],
            "topics": [
                {
                    "topic": "string",
                    "partitions": "integer",
                    "recordsPerSec": "number|null",
                    "bytes": "integer|null",
                    "underReplicated": "integer",
                    "withoutLeader": "integer",
                }
            ],
            "groups": [{"group": "string", "state": "string", "lag": "integer|null", "recordsPerSec": "number|null"}],
            "groupsLeftOut": "integer",
        },
    ),
    "groups --list": ("", [{"group": "string", "type": "string", "state": "string"}]),
    "groups --describe": (
        "members, offsets and state together; a group that does not exist has only a name and an error",
        [
            {
                "group": "string",
                "error?": "string",
                "state?": "string",
                "assignmentStrategy?": "string",
                "groupEpoch?": "integer|null",
                "targetAssignmentEpoch?": "integer|null",
                "coordinator?": {"id": "integer", "host": "string|null", "port": "integer|null"},
                "members?": [
                    {
                        "consumerId": "string",
                        "groupInstanceId": "string|null",
                        "clientId": "string",
                        "host": "string",
                        "assignment": {"<topic>": ["integer"]},
                        "epoch": "integer|null",
                        "targetAssignment": {"<topic>": ["integer"]},
                        "upgraded": "boolean|null",
                    }
                ],
                "offsets?": [
                    {
                        **_PARTITION,
                        "currentOffset": "integer|null",
                        "logEndOffset": "integer|null",
                        "lag": "integer|null",
                        "consumerId": "string|null",
                    }
                ],
            }
        ],
    ),
    "groups --reset-offsets": ("", [{"group": "string", **_PARTITION, "offset": "integer"}]),
    "groups --delete": ("the reason why a group was not deleted, null if it was", {"<group>": "string|null"}),
    "groups --delete-offsets": ("a status of Successful, or the error", [{**_PARTITION, "status": "string"}]),
    "transactions list": (
        "",
        [
            {
                "transactionalId": "string",
                "coordinator": "integer",
                "producerId": "integer",
                "transactionState": "string",
            }
        ],
    ),
    "transactions describe": (
        "the start and the duration are null if no transaction is open",
        [
            {
                "coordinatorId": "integer",
                "transactionalId": "string",
                "producerId": "integer",
                "producerEpoch": "integer",
                "transactionState": "string",
                "transactionTimeoutMs": "integer",
                "currentTransactionStartTimeMs": "integer|null",
                "transactionDurationMs": "integer|null",
                "topicPartitions": ["string"],
            }
        ],
    ),
    "transactions describe-producers": (
        "the start offset is null if no transaction is open",
        [
            {
                "producerId": "integer",
                "producerEpoch": "integer",
                "latestCoordinatorEpoch": "integer",
                "lastSequence": "integer",
                "lastTimestamp": "integer",
                "currentTransactionStartOffset": "integer|null",
            }
        ],
    ),
    "transactions find-hanging": (
        "",
        [
            {
                **_PARTITION,
                "producerId": "integer",
                "producerEpoch": "integer",
                "coordinatorEpoch": "integer",
                "startOffset": "integer",
                "lastTimestamp": "integer",
                "durationMin": "integer",
            }
        ],
    ),
    "configs --describe": (
        "a name of null means all brokers, or the default of users, client ids or addresses",
        [
            {
                "type": "string",
                "name": "string|null",
                "clientId?": "string|null",
                "configs": [
                    {
                        "name": "string",
                        "value": "string|null",
                        "readOnly": "boolean",
                        "sensitive": "boolean",
                        "source": "string",
                        "synonyms": [{"name": "string", "value": "string|null", "source": "string"}],
                    }
                ],
            }
        ],
    ),
    "offsets": ("", [{**_PARTITION, "offset": "integer", "timestamp": "integer"}]),
    "acls --list": (
        "",
        [
            {
                "resourceType": "string",
                "resourceName": "string",
                "patternType": "string",
                "principal": "string",
                "host": "string",
                "operation": "string",
                "permissionType": "string",
            }
        ],
    ),
    "features describe": (
        "a level of 0 means that the feature is not used",
        [
            {
                "feature": "string",
                "supportedMin": "integer",
                "supportedMax": "integer",
                "level": "integer",
                "epoch": "integer",
            }
        ],
    ),
    "delegation-tokens --describe": (
        "times are in milliseconds since 1970",
        [
            {
                "tokenId": "string",
                "hmac": "string",
                "owner": "string",
                "requester": "string",
                "renewers": ["string"],
                "issuedMs": "integer",
                "expiresMs": "integer",
                "maxMs": "integer",
            }
        ],
    ),
    "delete-records": ("", [{**_PARTITION, "lowWatermark": "integer", "error": "string|null"}]),
    "elect-leaders": (
        "elected is false if the right broker was already the leader, or if there is an error",
        [{**_PARTITION, "elected": "boolean", "error": "string|null"}],
    ),
    "reassign --list": ("", [{**_PARTITION, "replicas": ["integer"], "adding": ["integer"], "removing": ["integer"]}]),
    "reassign --generate": ("each of them can be passed to --execute", {"current": _PLAN, "proposed": _PLAN}),
    "reassign --verify": (
        "progress contains the replicas that are being added on other brokers",
        {
            "completed": "boolean",
            "partitions": [{**_PARTITION, "current": ["integer"], "target": ["integer"], "inProgress": "boolean"}],
            "logDirs": [
                {
                    **_PARTITION,
                    "broker": "integer",
                    "current": "string|null",
                    "future": "string|null",
                    "target": "string",
                }
            ],
            "progress": [{**_PARTITION, "broker": "integer", "bytes": "integer", "ofBytes": "integer"}],
        },
    ),
    "balance --plan": (
        "also for --execute; the skew is 0 if all loads are within the tolerance",
        {
            "brokers": [
                {
                    "broker": "integer",
                    "rack": "string|null",
                    "hostLabel": "string|null",
                    "before": _LOADS,
                    "after": _LOADS,
                }
            ],
            "bytes": "integer",
            "skew": {"before": "number", "after": "number"},
            "moves": [
                {
                    **_PARTITION,
                    "before": ["integer"],
                    "after": ["integer"],
                    "bytes": "integer",
                    "reason": "string",
                }
            ],
            "elections": [_PARTITION],
            "stranded": [{**_PARTITION, "reason": "string"}],
        },
    ),
    "balance --holds": ("", [{**_PARTITION, "leads": "boolean", "bytes": "integer"}]),
    "cluster list-endpoints": (
        "state is fenced or unfenced",
        [
            {
                "id": "integer",
                "host": "string",
                "port": "integer",
                "rack": "string|null",
                "hostLabel": "string|null",
                "state": "string",
            }
        ],
    ),
    "log-dirs --verify": (
        "the damaged records that the brokers have found in their logs",
        {
            "brokers": [
                {
                    "broker": "integer",
                    "partitions": [
                        {
                            "partition": "string",
                            "logDir": "string",
                            "size": "integer",
                            "damage": [
                                {
                                    "firstOffset": "integer",
                                    "lastOffset": "integer",
                                    "reason": "string",
                                    "hasNoCopy": "boolean",
                                }
                            ],
                        }
                    ],
                }
            ]
        },
    ),
    "log-dirs --space": (
        "a number is null if the broker does not know it",
        [
            {
                "broker": "integer",
                "logDir": "string",
                "totalBytes": "integer|null",
                "freeBytes": "integer|null",
                "partitionBytes": "integer",
                "error": "string|null",
            }
        ],
    ),
    "log-dirs --describe": (
        "the same as without --json, but without Kafka's two lines before it",
        {
            "brokers": [
                {
                    "broker": "integer",
                    "logDirs": [
                        {
                            "partitions": [
                                {
                                    "partition": "string",
                                    "size": "integer",
                                    "offsetLag": "integer",
                                    "isFuture": "boolean",
                                }
                            ],
                            "error": "string|null",
                            "logDir": "string",
                        }
                    ],
                }
            ],
            "version": "integer",
        },
    ),
    "metadata": (
        "a value is null if the cluster does not report it; leader is null if there is none, too",
        {
            "clusterId": "string",
            "controllerId": "integer",
            "controllerEpoch": "integer|null",
            "version": "integer|null",
            "brokers": [
                {
                    "id": "integer",
                    "host": "string",
                    "port": "integer",
                    "rack": "string|null",
                    "hostLabel": "string|null",
                    "fenced": "boolean",
                    "reachable": "boolean",
                    "epoch": "integer|null",
                    "listeners": "any",
                    "leads": "integer",
                    "replicas": "integer",
                    "inSync": "integer",
                }
            ],
            "partitions": [
                {
                    **_PARTITION,
                    "leader": "integer|null",
                    "leaderEpoch": "integer",
                    "replicas": ["integer"],
                    "isr": ["integer"],
                    "offline": ["integer"],
                    "internal": "boolean",
                    "state": "string",
                }
            ],
            "warnings": ["string"],
        },
    ),
    "check": (
        "committed and aborted count transactions; only with --transactions",
        {
            "ok": "boolean",
            "committed?": "integer",
            "aborted?": "integer",
            "sent": "integer",
            "acknowledged": "integer",
            "found": "integer",
            "longestPauseMs": "integer",
            "violations": [{"kind": "string", "text": "string"}],
            "clientErrors": ["string"],
        },
    ),
    "dump-log": (
        "one object per line; its fields depend on what the line describes",
        {"file": "string", "problem?": "string", "record?": "any", "<field>": "any"},
    ),
    "log-repair": (
        "",
        [
            {
                "file": "string",
                "topic": "string",
                "partition": "integer",
                "firstOffset": "integer",
                "lastOffset": "integer",
                "records": "integer",
                "lastLeaderEpoch": "integer",
                "sizeBytes": "integer",
            }
        ],
    ),
    "perf produce": ("steadyState only with --warmup-records", {**_SENT, "failed": "integer", "steadyState?": _SENT}),
    "perf consume": (
        "",
        {
            "mb": "number",
            "mbPerSec": "number",
            "records": "integer",
            "recordsPerSec": "number",
            "rebalanceMs": "number",
            "fetchMs": "number",
            "fetchMbPerSec": "number",
            "fetchPerSec": "number",
        },
    ),
    "perf latency": ("", {"avgMs": "number", **_LATENCIES, "records": "integer"}),
    "mirror": (
        "one object per line and flow; all numbers since the start, except lag, in offsets",
        {
            "flow": "string",
            "topics": "integer",
            "records": "integer",
            "bytes": "integer",
            "lag": "integer",
            "recordsPerSec": "integer",
            "bytesPerSec": "integer",
        },
    ),
    "doctor": ("exitCode is that of the command", _DIAGNOSIS),
    "security check": (
        "open is false if only notes were found; complete is true if no check failed",
        {
            "open": "boolean",
            "complete": "boolean",
            "findings": [
                {"check": "string", "severity": "string", "text": "string", "in": ["string"], "advice": "string"}
            ],
            "notChecked": ["string"],
        },
    ),
    "coordination check": (
        "runs is false if a cluster cannot run on the store",
        {
            "store": "string",
            "identity": "string",
            "runs": "boolean",
            "runsWell": "boolean",
            "passed": ["string"],
            "problems": ["string"],
            "remarks": ["string"],
            "latenciesMs": {"<name>": "number"},
            "protection": {"<tree or connection>": {"state": "string", "text": "string", "advice": "string"}},
        },
    ),
    "coordination status": (
        "controller is null if there is none; keys are counted by kind",
        {
            "store": "string",
            "identity": "string",
            "state": "string",
            "term": "integer",
            "move": {"id": "string", "other": "string|null", "done": "boolean", "note": "string"},
            "clusterId": "string|null",
            "controller": "integer|null",
            "controllerEpoch": "integer",
            "members": [{"broker": "integer", "epoch": "integer", "session": "string", "endpoints": ["string"]}],
            "sessions": ["string"],
            "watches": {"count": "integer|null", "source": "string"},
            "keys": {"<kind>": {"count": "integer", "bytes": "integer"}},
        },
    ),
    "coordination migrate": (
        "state is none, under way, done or failed",
        {"move": "string", "state": "string", "step": "string", "detail": "string", "store": "string"},
    ),
    "profile list": (
        "",
        [
            {
                "profile": "string",
                "current": "boolean",
                "bootstrapServers": "string",
                "securityProtocol": "string",
            }
        ],
    ),
    "profile show": (
        "secrets are masked",
        {"profile": "string", "file": "string", "settings": {"<key>": "string"}},
    ),
    "version": (
        "",
        {"parley": "string", "python": "string", "librdkafka": "string", "modules": {"<module>": "string"}},
    ),
}
"""For each command: a note on its output, and the output's shape."""

_TYPES: Final[Mapping[str, Any]] = {"string": str, "integer": int, "number": (int, float), "boolean": bool}


def differences(value: Any, shape: Shape, where: str = "$") -> list[str]:
    """Return a line for each difference between a value and a shape. Returns an empty list if the value has the
    shape."""
    match shape:
        case str():
            return [] if any(_is(value, name) for name in shape.split("|")) else [f"{where}: {value!r} is not {shape}"]
        case list():
            if not isinstance(value, list):
                return [f"{where} is not a list"]
            return [text for at, one in enumerate(value) for text in differences(one, shape[0], f"{where}[{at}]")]
        case _:
            return _object_differences(value, shape, where)


def _object_differences(value: Any, shape: dict[str, Any], where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{where} is not an object"]
    known = {name.rstrip("?"): one for name, one in shape.items() if not name.startswith("<")}
    rest = next((one for name, one in shape.items() if name.startswith("<")), None)
    found = [f"{where}.{name} is missing" for name in shape if name[0] != "<" and name[-1] != "?" and name not in value]
    for name, one in value.items():
        wanted = known.get(name, rest)
        if wanted is None:
            found.append(f"{where}.{name} is not in the shape")
        else:
            found += differences(one, wanted, f"{where}.{name}")
    return found


def _is(value: Any, name: str) -> bool:
    if name == "any":
        return True
    if name == "null":
        return value is None
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
