"""VerifyLogs: ``parley log-dirs --verify`` makes this broker read its logs again, and reports damage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial

from parley.broker.api.requested_names import in_slices
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition
from parley.protocol.errors import KafkaError
from parley.protocol.messages.log_verification import VerifyLogsRequest, VerifyLogsResponse
from parley.storage.damage.scrubber import Scrubber


class LogVerificationApi:
    """Handler of requests to verify this broker's logs, and to report the progress."""

    def __init__(self, partitions: HostedPartitions, scrubber: Scrubber, wall_ms: Callable[[], int]) -> None:
        self._partitions = partitions
        self._scrubber = scrubber
        self._wall_ms = wall_ms

    def routes(self) -> dict[int, Handler]:
        return {VerifyLogsRequest.API_KEY: self.verify_logs}

    async def verify_logs(self, context: RequestContext, request: VerifyLogsRequest) -> VerifyLogsResponse:
        """Make the scrubber read everything that it has not verified since ``since_ms`` (milliseconds since 1970), and
        report how much is left.

        A negative time means now, and so does a time in the future: otherwise every segment would count as unverified
        until that time. The response contains the time that was used. It omits partitions whose logs are not open.
        """
        now_ms = self._wall_ms()
        since_ms = min(request.since_ms, now_ms) if request.since_ms >= 0 else now_ms
        named = None if request.topics is None else set(request.topics)
        wanted = [partition for partition in self._partitions if named is None or partition.topic in named]
        topics: defaultdict[str, list[VerifyLogsResponse.Partition]] = defaultdict(list)
        found = await in_slices(partial(self._described, since_ms), wanted)
        for partition, described in zip(wanted, found, strict=True):
            if described is not None:
                topics[partition.topic].append(described)
        return VerifyLogsResponse(
            since_ms=since_ms,
            topics=[
                VerifyLogsResponse.Topic(name=name, partitions=partitions)
                for name, partitions in sorted(topics.items())
            ],
        )

    def _described(self, since_ms: int, partition: Partition) -> VerifyLogsResponse.Partition | None:
        """Request the verification of a log, and return its state. Returns None if the log is not open, or was
        deleted meanwhile."""
        try:
            log = partition.log
            self._scrubber.require(log, since_ms)
        except KafkaError:
            return None
        return VerifyLogsResponse.Partition(
            partition_index=partition.index,
            log_dir=str(log.directory.parent),
            size_bytes=log.size_bytes,
            unverified_bytes=self._scrubber.unverified_bytes(log, since_ms),
            damage=[
                VerifyLogsResponse.Damage(
                    first_offset=damage.first_offset,
                    last_offset=damage.last_offset,
                    reason=damage.reason,
                    has_no_copy=partition.has_no_copy(damage),
                )
                for damage in log.damage
            ],
        )
