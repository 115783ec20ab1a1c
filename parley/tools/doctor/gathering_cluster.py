"""Take the snapshot of a cluster, through Kafka's protocol, the brokers' metrics and the store.

Each step has a time limit (``steps``), so that a broker that hangs does not delay the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from parley.protocol.client import Client, parse_bootstrap
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.host_label import host_label_of
from parley.protocol.messages.api_versions import ApiVersionsRequest
from parley.protocol.messages.cluster_metadata import FetchMetadataRequest
from parley.protocol.messages.configs import DescribeConfigsRequest
from parley.protocol.messages.log_dirs import DescribeLogDirsRequest
from parley.tools.cli.cluster import describe
from parley.tools.cli.cluster_client import check
from parley.tools.cli.invocation import CommandError
from parley.tools.doctor.facts import Broker, Cluster, Directory, Metrics, Missing, Part, Partition, ReplicaSize
from parley.tools.doctor.gathering_clients import GROUPS_MAX, Groups, hanging_transactions
from parley.tools.doctor.gathering_http import NoPage
from parley.tools.doctor.gathering_metrics import metrics_at
from parley.tools.doctor.gathering_moves import moves_of
from parley.tools.doctor.gathering_processes import listening_on, ports_of
from parley.tools.doctor.gathering_store import STORE_S, store_of
from parley.tools.doctor.replica_checks import is_local
from parley.tools.doctor.steps import LIMIT_S, STEP_S, Steps, in_background
from parley.tools.security_check.cluster_subjects import certificate_expiry

_BROKER, _TOPIC = 4, 2
"""The types of configuration resources."""
_OF_ONE_BROKER: Final = 2
"""The source of a setting that was set at run time for one broker."""
_PARLEYS_API: Final = FetchMetadataRequest.API_KEY
"""The key of an API that only Parley's brokers have. A client may see the APIs even if it may not read the settings."""
_EVERYWHERE: Final = ("", "0.0.0.0", "::", "[::]")
_TLS: Final = ("SSL", "SASL_SSL")
_TOPICS_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Request:
    """What to examine. ``metrics`` contains the URLs of brokers' metrics by broker id; the URLs of other brokers come
    from their settings."""

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[int, str] = field(default_factory=dict)
    store: Mapping[str, str] | None = None
    """The configuration of a broker, which names the store. None to skip the store."""
    interval_s: float = 10.0
    limit_s: float = LIMIT_S
    progress: Callable[[str], None] = lambda text: None


class Gathering:
    """The examination of a cluster. Call ``cluster`` only once."""

    def __init__(self, client: Client, request: Request) -> None:
        self._client = client
        self._request = request
        self._steps = Steps(request.limit_s)
        self._certificates: dict[str, datetime] = {}

    async def cluster(self) -> Cluster:
        """Take the snapshot. Raises KafkaError or TimeoutError if no broker describes the cluster."""
        request = self._request
        request.progress("the cluster and its brokers")
        async with asyncio.timeout(min(3 * STEP_S, self._steps.left_s)):
            metadata = await self._client.metadata()
            described = await self._described()
        brokers = [
            Broker(
                each.broker_id, each.host, each.port, each.rack or None, each.is_fenced, host_label=host_label_of(each)
            )
            for each in described.brokers
        ]
        brokers = list(await asyncio.gather(*(self._described_by_itself(each) for each in brokers)))
        is_parley = any(_PARLEYS_API in each.apis for each in brokers)
        self._note_brokers(brokers)
        brokers = await self._with_metrics(brokers, is_parley)
        partitions = _partitions(metadata)
        found = Cluster(
            datetime.now(UTC),
            [(each.host, each.port) for each in parse_bootstrap(request.bootstrap)],
            described.cluster_id,
            metadata.controller_id,
            is_parley,
            sorted(brokers, key=lambda each: each.id),
            partitions,
        )
        found = await self._with_clients(found)
        store = None
        if request.store is not None:
            store = await self._steps.step(
                Part.STORE, "coordination.url", store_of(request.store, STORE_S), 2 * STORE_S
            )
        if request.store is None and is_parley:
            self._steps.note(
                Part.STORE,
                "name a broker's properties file, or one with coordination.url, with --config to examine it",
                has_failed=False,
            )
        if not is_parley:
            self._steps.note(Part.STORE, "Apache Kafka has none", has_failed=False)
        return replace(found, store=store, certificates=self._certificates, missing=self._steps.missing)

    async def _described(self) -> Any:
        """Return the description of the cluster, including its fenced brokers if the brokers support that. Raises
        KafkaError if no broker responds or the broker rejects the request."""
        try:
            return await describe(self._client, fenced=True)
        except CommandError as error:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error

    # --- Each broker ---

    async def _described_by_itself(self, broker: Broker) -> Broker:
        """Return the broker with its own responses, or with an error if it does not respond."""
        if broker.is_fenced:
            return broker
        name = f"broker {broker.id}"
        try:
            async with asyncio.timeout(min(STEP_S, self._steps.left_s)):
                request = ApiVersionsRequest(client_software_name="parley-doctor", client_software_version="1")
                answer = await self._client.send(request, node=broker.id)
        except TimeoutError:
            return replace(broker, error=self._steps.why_late())
        except (KafkaError, OSError) as error:
            return replace(broker, error=str(error))
        described = await self._steps.step(Part.CONFIGS, name, self._settings(broker.id))
        directories = await self._steps.step(Part.LOG_DIRS, name, self._directories(broker.id))
        if self._request.properties.get("security.protocol") in _TLS:
            expires = await self._steps.step(Part.CERTIFICATES, name, self._expiry(broker))
            self._certificates |= {broker.address: expires} if expires is not None else {}
        return replace(
            broker,
            features={each.name: (each.min_version, each.max_version) for each in answer.supported_features},
            finalized={each.name: each.max_version_level for each in answer.finalized_features},
            apis={each.api_key: (each.min_version, each.max_version) for each in answer.api_keys},
            settings=None if described is None else {each.name: each.value or "" for each in described},
            own_settings=[each.name for each in described or () if each.config_source == _OF_ONE_BROKER],
            directories=directories,
        )

    def _note_brokers(self, brokers: Sequence[Broker]) -> None:
        for each in brokers:
            if each.error:
                for part in (Part.CONFIGS, Part.LOG_DIRS):
                    self._steps.note(part, f"broker {each.id}: {each.error}")
        if self._request.properties.get("security.protocol") not in _TLS:
            self._steps.note(Part.CERTIFICATES, "this client does not use TLS", has_failed=False)

    async def _settings(self, id_: int) -> list[Any]:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_BROKER, resource_name=str(id_), configuration_keys=None
        )
        answer = await self._client.send(DescribeConfigsRequest(resources=[resource]), node=id_)
        (result,) = answer.results
        check(result.error_code, result.error_message)
        return [each for each in result.configs if not each.is_sensitive]

    async def _directories(self, id_: int) -> list[Directory]:
        answer = await self._client.send(DescribeLogDirsRequest(topics=None), node=id_)
        check(answer.error_code)
        return [_directory(each) for each in answer.results]

    async def _expiry(self, broker: Broker) -> datetime:
        return await in_background(lambda: certificate_expiry(broker.host, broker.port, self._request.properties))

    # --- Metrics ---

    async def _with_metrics(self, brokers: Sequence[Broker], is_parley: bool) -> list[Broker]:
        if not is_parley and not self._request.metrics:
            self._steps.note(Part.METRICS, "Apache Kafka has them in JMX, which is not read", has_failed=False)
            return list(brokers)
        self._request.progress("metrics")
        return list(await asyncio.gather(*(self._with_its_metrics(each) for each in brokers)))

    async def _with_its_metrics(self, broker: Broker) -> Broker:
        if not broker.responds:
            return broker
        url = self._request.metrics.get(broker.id) or _metrics_url(broker)
        urls = [url] if url else await in_background(lambda: _metrics_urls_here(broker))
        if not urls:
            reason = (
                f"broker {broker.id}: its metrics.listener is not set, or not reachable from here "
                "(--metrics names another address)"
            )
            self._steps.note(Part.METRICS, reason, has_failed=False)
            return broker
        metrics = await self._steps.step(
            Part.METRICS, f"broker {broker.id}", in_background(lambda: self._metrics_at(urls))
        )
        return replace(broker, metrics=metrics)

    def _metrics_at(self, urls: Sequence[str]) -> Metrics:
        """Return the metrics at the first of these URLs at which a server has any. Raises CommandError if none has."""
        reason = ""
        for url in urls:
            try:
                return metrics_at(url, STEP_S, self._client.security.tls)
            except NoPage as error:
                reason = str(error)
        raise CommandError(reason)

    # --- Topics, groups, transactions, reassignments ---

    async def _with_clients(self, cluster: Cluster) -> Cluster:
        """Return the cluster with hanging transactions, with groups and reassignments, which are sampled twice, and
        with ``min.insync.replicas`` of topics whose replicas are out of sync."""
        request = self._request
        request.progress("groups, transactions and reassignments")
        shrunk = {each.topic for each in cluster.partitions if len(each.isr) < len(each.replicas)}
        node = next((each.id for each in cluster.running if each.responds), None)
        least = await self._steps.step(Part.CONFIGS, "topics", self._min_isr(sorted(shrunk), node)) if shrunk else {}
        groups = Groups(self._client, cluster)
        first = await self._steps.step(Part.GROUPS, "groups", groups.first(), 2 * STEP_S)
        if groups.listed > GROUPS_MAX:
            self._steps.note(Part.GROUPS, f"{groups.listed - GROUPS_MAX} of {groups.listed} groups", has_failed=False)
        before = await self._steps.step(Part.MOVES, "reassignments", moves_of(self._client, cluster))
        hanging = await self._steps.step(
            Part.TRANSACTIONS, "open transactions", hanging_transactions(self._client, cluster), 2 * STEP_S
        )
        if (first or before) and self._steps.left_s <= request.interval_s:
            for part in (Part.GROUPS, Part.MOVES):
                self._steps.note(part, f"the {request.limit_s:g} s of --time-limit leave no time for a second look")
            first = before = None
        if first or before:
            request.progress(f"what changes within {request.interval_s:g} s")
            await asyncio.sleep(request.interval_s)
        last = (
            await self._steps.step(Part.GROUPS, "groups", groups.last(first), 2 * STEP_S) if first is not None else None
        )
        moves = before and await self._steps.step(
            Part.MOVES, "reassignments", moves_of(self._client, await self._again(cluster), before)
        )
        return replace(
            cluster,
            min_isr=least or {},
            groups=last,
            hanging=hanging,
            moves=moves,
            interval_s=request.interval_s,
        )

    async def _again(self, cluster: Cluster) -> Cluster:
        """Return the cluster with the log directories as they are now."""

        async def again(broker: Broker) -> Broker:
            if not broker.responds:
                return broker
            found = await self._steps.step(Part.LOG_DIRS, f"broker {broker.id}", self._directories(broker.id))
            return replace(broker, directories=found)

        return replace(cluster, brokers=await asyncio.gather(*map(again, cluster.brokers)))

    async def _min_isr(self, topics: Sequence[str], node: int | None) -> dict[str, int]:
        found = {}
        for begin in range(0, len(topics), _TOPICS_AT_ONCE):
            resources = [
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=_TOPIC, resource_name=name, configuration_keys=["min.insync.replicas"]
                )
                for name in topics[begin : begin + _TOPICS_AT_ONCE]
            ]
            answer = await self._client.send(DescribeConfigsRequest(resources=resources), node=node)
            for result in answer.results:
                if not result.error_code:
                    found[result.resource_name] = int(result.configs[0].value or 1)
        return found


def refused_certificates(request: Request, reason: str) -> Cluster | None:
    """Return a snapshot that contains only expired certificates, if this client rejects the brokers because of them,
    otherwise None. ``reason`` says why the other parts are missing. Blocks."""
    now = datetime.now(UTC)
    bootstrap = [(each.host, each.port) for each in parse_bootstrap(request.bootstrap)]
    expired: dict[str, datetime] = {}
    for host, port in bootstrap if request.properties.get("security.protocol") in _TLS else ():
        with suppress(OSError, ValueError):
            at = certificate_expiry(host, port, request.properties)
            expired |= {f"{host}:{port}": at} if at <= now else {}
    if not expired:
        return None
    missing = [Missing(part, reason) for part in (Part.METADATA, Part.BROKERS)]
    return Cluster(now, bootstrap, None, 0, False, [], [], certificates=expired, missing=missing)


def _partitions(metadata: Any) -> list[Partition]:
    found = [
        Partition(
            topic.name or "", each.partition_index, each.leader_id, tuple(each.replica_nodes), tuple(each.isr_nodes)
        )
        for topic in metadata.topics
        for each in topic.partitions
    ]
    return sorted(found, key=lambda each: (each.topic, each.index))


def _directory(found: Any) -> Directory:
    return Directory(
        found.log_dir,
        ErrorCode(found.error_code).name if found.error_code else "",
        found.total_bytes if found.total_bytes > 0 else None,
        found.usable_bytes if found.usable_bytes >= 0 else None,
        {
            (topic.name, each.partition_index): ReplicaSize(each.partition_size, each.offset_lag)
            for topic in found.topics
            for each in topic.partitions
        },
    )


def _metrics_url(broker: Broker) -> str:
    """Return the URL of a broker's metrics, from its settings, or an empty string if the settings do not contain it."""
    scheme, host, port = _metrics_listener(broker)
    return f"{scheme}://{host}:{port}" if port not in ("", "0") else ""


def _metrics_urls_here(broker: Broker) -> list[str]:
    """Return the URLs at which a broker may serve its metrics, if its ``metrics.listener`` has port 0 (any free port)
    and its process runs on this machine. Blocks."""
    scheme, host, port = _metrics_listener(broker)
    process = listening_on(broker.port) if port == "0" and is_local(broker.host) else None
    listeners = {each.rpartition(":")[2] for each in (broker.settings or {}).get("listeners", "").split(",")}
    ports = [] if process is None else ports_of(process)
    return [f"{scheme}://{host}:{each}" for each in ports if each != broker.port and str(each) not in listeners]


def _metrics_listener(broker: Broker) -> tuple[str, str, str]:
    """Return the scheme, host and port of ``metrics.listener``. The port is empty if the settings do not contain it."""
    text = (broker.settings or {}).get("metrics.listener", "")
    scheme = "https" if text.startswith("https://") else "http"
    host, _, port = text.rpartition("//")[2].rpartition(":")
    return scheme, broker.host if host in _EVERYWHERE else host, port
