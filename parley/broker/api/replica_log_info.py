"""GetReplicaLogInfo: the controller requests the end offsets of this broker's logs (KIP-966)."""

from __future__ import annotations

from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.replication.replica_reports import ReplicaReports
from parley.protocol.messages.replication import GetReplicaLogInfoRequest, GetReplicaLogInfoResponse


class ReplicaLogInfoApi:
    """Handler of GetReplicaLogInfo."""

    def __init__(self, reports: ReplicaReports) -> None:
        self._reports = reports

    def routes(self) -> dict[int, Handler]:
        return {GetReplicaLogInfoRequest.API_KEY: self.get_replica_log_info}

    def get_replica_log_info(
        self, context: RequestContext, request: GetReplicaLogInfoRequest
    ) -> GetReplicaLogInfoResponse:
        """Return the end offsets of the requested logs, or of all logs if the request names none. If they exceed a
        page, the response is ``truncated``, and the controller must request the rest."""
        return self._reports.page(request)
