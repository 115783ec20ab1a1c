"""The checks that request handlers make: may the client of this request perform this operation?

Without an authorizer all operations are allowed, and nothing is looked up or logged. With an authorizer, every check
must be in the table of ``requirements``: any other check raises, so that the table stays complete.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Protocol

from parley.broker.security.audit import AuditLog
from parley.broker.security.authorizer import AuthorizationDecision, Authorizer
from parley.broker.security.operations import Operation, bit_field
from parley.broker.security.requirements import DECLARED
from parley.broker.security.resources import CLUSTER_NAME, SUPPORTED_OPERATIONS, ResourceType
from parley.broker.security.session import ClientSession
from parley.protocol.messages import APIS

_ALL_OPERATIONS = {type: bit_field(operations) for type, operations in SUPPORTED_OPERATIONS.items()}


class Asking(Protocol):
    """The parts of a request on which its authorization depends."""

    @property
    def api_key(self) -> int: ...

    @property
    def session(self) -> ClientSession: ...


class Authorization:
    """Makes decisions for request handlers, and writes the audit log."""

    def __init__(
        self,
        authorizer: Authorizer | None = None,
        audit: AuditLog | None = None,
        *,
        broker_listeners: Container[str] | None = None,
    ) -> None:
        """Without ``authorizer`` everything is allowed. With an authorizer, ``audit`` is required, too.

        ``broker_listeners`` contains the names of the listeners that other brokers use; None means any listener.
        """
        self.authorizer = authorizer
        self.audit = audit
        self._broker_listeners = broker_listeners
        self.is_enforced = authorizer is not None
        """False if all operations are allowed."""

    def may(
        self, request: Asking, operation: Operation, type: ResourceType, name: str, *, is_probe: bool = False
    ) -> bool:
        """Return True if the client may perform the operation on the resource. If ``is_probe``, the check is not
        audited.

        Raises LookupError if the table of requirements does not contain this check.
        """
        if self.authorizer is None:
            return True
        if (request.api_key, type, operation) not in DECLARED:
            raise _undeclared(request.api_key, type, operation)
        decision = self.authorizer.authorize(request.session, operation, type, name)
        if not is_probe:
            self._record(request, operation, type, name, decision)
        return decision.is_allowed

    def probe(self, request: Asking, operation: Operation, type: ResourceType) -> Callable[[str], bool]:
        """Return a function that tests, for many resources, whether the client may perform the operation on them.

        A call costs a third of ``may``, and leaves nothing in the audit log. Raises LookupError like ``may``.
        """
        if self.authorizer is None:
            return lambda name: True
        if (request.api_key, type, operation) not in DECLARED:
            raise _undeclared(request.api_key, type, operation)
        authorize, session = self.authorizer.authorize, request.session
        return lambda name: authorize(session, operation, type, name).is_allowed

    def may_on_cluster(self, request: Asking, operation: Operation, *, is_probe: bool = False) -> bool:
        """Return True if the client may perform the operation on the cluster. Audits and raises LookupError like
        ``may``."""
        return self.may(request, operation, ResourceType.CLUSTER, CLUSTER_NAME, is_probe=is_probe)

    def may_on_any(self, request: Asking, operation: Operation, type: ResourceType) -> bool:
        """Return True if the client may perform the operation on at least one resource of the type (KIP-679). The check
        is audited. Raises LookupError like ``may``."""
        if self.authorizer is None:
            return True
        if (request.api_key, type, operation) not in DECLARED:
            raise _undeclared(request.api_key, type, operation)
        decision = self.authorizer.authorize_any(request.session, operation, type)
        self._record(request, operation, type, "(any)", decision)
        return decision.is_allowed

    def is_broker(self, session: ClientSession) -> bool:
        """Return True if the client uses an inter-broker listener and may send the requests that brokers send each
        other.

        Without an authorizer every client of such a listener may do so.
        """
        if self._broker_listeners is not None and session.listener not in self._broker_listeners:
            return False
        if self.authorizer is None:
            return True
        decision = self.authorizer.authorize(session, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        return decision.is_allowed

    def allowed(
        self,
        request: Asking,
        operation: Operation,
        type: ResourceType,
        names: Iterable[str],
        *,
        is_probe: bool = False,
    ) -> set[str]:
        """Return the subset of ``names`` on which the client may perform the operation. Audits each name unless
        ``is_probe``. Raises LookupError like ``may``."""
        if self.authorizer is None:
            return set(names)
        if is_probe:
            return set(filter(self.probe(request, operation, type), names))
        return {name for name in set(names) if self.may(request, operation, type, name)}

    def operations(self, request: Asking, type: ResourceType, name: str) -> int:
        """Return the operations that the client may perform on a resource, as a bit field (KIP-430). This is not
        audited."""
        if self.authorizer is None:
            return _ALL_OPERATIONS[type]
        authorize, session = self.authorizer.authorize, request.session
        return bit_field(
            operation
            for operation in SUPPORTED_OPERATIONS[type]
            if authorize(session, operation, type, name).is_allowed
        )

    def described_cluster_operations(self, request: Asking) -> int:
        """Return the operations that the client may perform on the cluster as a bit field. Returns 0 if the client may
        not describe the cluster. Raises LookupError like ``may``."""
        if not self.may_on_cluster(request, Operation.DESCRIBE, is_probe=True):
            return 0
        return self.operations(request, ResourceType.CLUSTER, CLUSTER_NAME)

    def _record(
        self,
        request: Asking,
        operation: Operation,
        type: ResourceType,
        name: str,
        decision: AuthorizationDecision,
    ) -> None:
        if self.audit is not None:
            self.audit.record(request.session, APIS[request.api_key].name, operation, type, name, decision)


def _undeclared(api_key: int, type: ResourceType, operation: Operation) -> LookupError:
    return LookupError(
        f"{APIS[api_key].name} checks {operation.name} on {type.name}, which is not in the table of requirements"
    )


EVERYONE_MAY = Authorization()
"""The authorization of a broker without an authorizer."""
