"""The effect of quotas on requests: throttle times, the longest of several, exemptions, and changes at run time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from parley.broker.config import ConfigError
from parley.broker.metadata.changes import Delta
from parley.broker.metadata.image import MetadataImage
from parley.broker.network.request_context import ConnectedClient, RequestContext
from parley.broker.quotas.callback import ClientQuotaCallback, load_callback
from parley.broker.quotas.connection_rates import ConnectionRates
from parley.broker.quotas.enforcement import EXPORTED_MAX, QuotaEnforcement
from parley.broker.quotas.entities import QuotaEntity, QuotaKey, StoredQuotas
from parley.broker.quotas.precedence import Limit
from parley.broker.quotas.rates import Windows
from parley.broker.security.audit import AuditLog
from parley.broker.security.authorization import EVERYONE_MAY, Authorization
from parley.broker.security.authorizer import AuthorizationDecision, Authorizer
from parley.broker.security.operations import Operation
from parley.broker.security.principal import Principal
from parley.broker.security.resources import ResourceType
from parley.broker.security.session import ClientSession
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages import APIS
from parley.protocol.messages.cluster_metadata import FetchMetadataRequest
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse
from parley.protocol.messages.produce import ProduceRequest, ProduceResponse
from parley.protocol.messages.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.messages.transactions import AddPartitionsToTxnRequest

PRODUCE, FETCH, METADATA = ProduceRequest.API_KEY, FetchRequest.API_KEY, MetadataRequest.API_KEY
CREATE, ADD_TO_TXN = CreateTopicsRequest.API_KEY, AddPartitionsToTxnRequest.API_KEY
FETCH_METADATA = FetchMetadataRequest.API_KEY
NO_TOPICS = MetadataResponse(brokers=[], topics=[])
ALICE = QuotaEntity(user="alice")


class Clock:
    """Virtual time."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def stored(entity: QuotaEntity = ALICE, **rates: float) -> StoredQuotas:
    return {entity: rates}


class EveryoneIsABroker(Authorizer):
    """An authorizer that allows everything."""

    def authorize(
        self, client: ClientSession, operation: Operation, type: ResourceType, name: str
    ) -> AuthorizationDecision:
        return AuthorizationDecision(True, "")

    def authorize_any(self, client: ClientSession, operation: Operation, type: ResourceType) -> AuthorizationDecision:
        return AuthorizationDecision(True, "")


def enforcing(
    quotas: StoredQuotas,
    clock: Clock | None = None,
    authorization: Authorization = EVERYONE_MAY,
    **options: Any,
) -> QuotaEnforcement:
    enforcement = QuotaEnforcement(
        authorization, windows=Windows(), controller_windows=Windows(), monotonic=clock or Clock(), **options
    )
    apply(enforcement, quotas)
    return enforcement


def apply(enforcement: QuotaEnforcement, quotas: StoredQuotas) -> None:
    enforcement.apply(Delta(1, 1, ()), MetadataImage("cluster", client_quotas=quotas))


def request(
    api_key: int = METADATA,
    *,
    user: str = "alice",
    client_id: str | None = "app",
    size: int = 0,
    busy_s: float = 0.0,
    version: int = 12,
) -> RequestContext:
    client = ConnectedClient(ClientSession(Principal("User", user), "10.0.0.1", "PLAINTEXT"), 4711)
    return RequestContext(api_key, version, 7, client_id, client, 0.0, size, busy_s)


def test_nothing_is_active_without_quotas() -> None:
    enforcement = enforcing({})
    assert not enforcement.is_active
    apply(enforcement, {QuotaEntity(ip="10.0.0.1"): {QuotaKey.CONNECTION_CREATION_RATE: 5.0}})
    assert not enforcement.is_active, "rates of connections concern no request"
    apply(enforcement, stored(producer_byte_rate=1.0))
    assert enforcement.is_active
    apply(enforcement, {})
    assert not enforcement.is_active


def test_a_producer_beyond_its_quota_is_throttled() -> None:
    enforcement = enforcing(stored(producer_byte_rate=1000.0))
    response = ProduceResponse(responses=[])
    assert enforcement.charge(request(PRODUCE, size=10_000), response, 0.0) == (response, 0.0)
    told, throttle_s = enforcement.charge(request(PRODUCE, size=2_500), response, 0.0)
    assert isinstance(told, ProduceResponse)
    assert (told.throttle_time_ms, throttle_s) == (2500, 2.5)
    assert response.throttle_time_ms == 0, "another client may get the same object"
    assert enforcement.charge(request(PRODUCE, size=1), response, 11.0)[1] == 0.0, "all windows have passed"


def test_requests_without_a_response_are_throttled_for_their_bytes_only() -> None:
    enforcement = enforcing(stored(producer_byte_rate=1000.0, request_percentage=1.0))
    assert enforcement.charge(request(PRODUCE, size=1000, busy_s=5.0), None, 0.0) == (None, 0.0)
    assert enforcement.charge(request(PRODUCE, size=12_000), None, 0.0) == (None, 3.0)


def test_other_users_and_clients_are_not_affected() -> None:
    enforcement = enforcing(
        {ALICE: {"producer_byte_rate": 10.0}, QuotaEntity(client_id="slow"): {"producer_byte_rate": 10.0}}
    )
    assert enforcement.charge(request(PRODUCE, size=9999), None, 0.0)[1] > 0
    assert enforcement.charge(request(PRODUCE, size=1, client_id="another app"), None, 0.0)[1] > 0, "it is alice, too"
    assert enforcement.charge(request(PRODUCE, size=9999, user="bob"), None, 0.0)[1] == 0.0
    assert enforcement.charge(request(PRODUCE, size=9999, user="bob", client_id="slow"), None, 0.0)[1] > 0
    assert enforcement.charge(request(PRODUCE, size=9999, user="bob", client_id=None), None, 0.0)[1] == 0.0


def test_request_time_is_in_percent_of_one_core_and_throttles_for_a_window_at_most() -> None:
    enforcement = enforcing(stored(request_percentage=50.0))
    response = MetadataResponse(brokers=[], topics=[])
    assert enforcement.charge(request(busy_s=5.0), response, 0.0)[1] == 0.0, "half a core for ten seconds"
    assert enforcement.charge(request(busy_s=0.1), response, 0.0)[1] == pytest.approx(0.2)
    assert enforcement.charge(request(busy_s=50.0), response, 0.0)[1] == 1.0


def test_the_longest_throttle_counts() -> None:
    enforcement = enforcing(stored(request_percentage=50.0, producer_byte_rate=1000.0))
    response = ProduceResponse(responses=[])
    assert enforcement.charge(request(PRODUCE, size=10_100, busy_s=5.25), response, 0.0)[1] == 0.5
    assert enforcement.charge(request(PRODUCE, size=10_100, busy_s=0.01), response, 0.0)[1] == pytest.approx(10.2)


def test_a_throttle_time_that_a_handler_has_set_counts() -> None:
    """The controller has throttled a request that this broker forwarded."""
    enforcement = enforcing(stored(request_percentage=50.0))
    from_controller = MetadataResponse(brokers=[], topics=[], throttle_time_ms=700)
    assert enforcement.charge(request(busy_s=0.1), from_controller, 0.0) == (from_controller, 0.7)
    told, throttle_s = enforcement.charge(request(busy_s=100.0), from_controller, 0.0)
    assert isinstance(told, MetadataResponse)
    assert (told.throttle_time_ms, throttle_s) == (1000, 1.0)


def test_a_produce_request_that_waits_counts_once() -> None:
    enforcement = enforcing(stored(producer_byte_rate=1000.0))
    waiting = request(PRODUCE, size=10_500)
    assert enforcement.received(waiting, 0.0) == 0.5
    told, throttle_s = enforcement.charge(waiting, ProduceResponse(responses=[]), 0.2)
    assert isinstance(told, ProduceResponse)
    assert (told.throttle_time_ms, throttle_s) == (300, 0.3), "the client has been throttled since the request came"
    assert enforcement.received(request(METADATA), 0.0) == 0.0
    ((_, numbers),) = enforcement.metrics()
    assert (numbers.used, numbers.throttles, numbers.throttle_seconds) == (10_500, 1, 0.5)


def test_a_produce_request_that_waits_longer_than_its_throttle_is_not_throttled_again() -> None:
    enforcement = enforcing(stored(producer_byte_rate=1000.0))
    waiting = request(PRODUCE, size=20_000)
    assert enforcement.received(waiting, 0.0) == 10.0
    assert enforcement.charge(waiting, ProduceResponse(responses=[]), 10.0)[1] == 0.0


def test_brokers_and_logins_are_exempt() -> None:
    enforcement = enforcing(
        {QuotaEntity(user=""): {"request_percentage": 0.001, "producer_byte_rate": 1.0, "consumer_byte_rate": 1.0}}
    )
    login = SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b"")
    for exempt in (
        request(FETCH_METADATA, client_id="broker-1-fetcher", busy_s=1.0),
        request(SaslHandshakeRequest.API_KEY, busy_s=1.0),
        request(SaslAuthenticateRequest.API_KEY, busy_s=1.0),
    ):
        assert enforcement.charge(exempt, login, 0.0) == (login, 0.0)
    assert enforcement.exempt_seconds == 3.0
    followers = request(FETCH, client_id="broker-1-fetcher")
    followers.is_from_follower = True
    assert enforcement.throttle_fetch_ms(followers, 10**9) == 0
    assert enforcement.charge(request(busy_s=1.0), MetadataResponse(brokers=[], topics=[]), 0.0)[1] == 1.0


def test_without_an_authorizer_the_name_of_a_broker_is_no_proof() -> None:
    """Kafka exempts the fetches of followers and what brokers alone ask for, too, and nothing else."""
    rates = {"request_percentage": 1.0, "producer_byte_rate": 1.0, "consumer_byte_rate": 1.0}
    enforcement = enforcing({QuotaEntity(user=""): {**rates, "controller_mutation_rate": 1.0}})
    name = "broker-7"
    assert enforcement.charge(request(PRODUCE, client_id=name, size=100), None, 0.0)[1] == 90.0
    assert enforcement.charge(request(client_id=name, busy_s=1.0), NO_TOPICS, 0.0)[1] == 1.0
    joining = request(ADD_TO_TXN, client_id=name, busy_s=1.0, version=3)
    assert enforcement.charge(joining, NO_TOPICS, 0.0)[1] == 1.0, "brokers use later versions"
    assert enforcement.throttle_fetch_ms(request(FETCH, client_id=name), 1) == 0, "one batch is returned in any case"
    assert enforcement.throttle_fetch_ms(request(FETCH, client_id=name), 100) > 0
    changes = enforcement.mutations(request(CREATE, client_id=name), 6)
    changes.charge("a", 100)
    with pytest.raises(KafkaError):
        changes.charge("b", 1)


def test_with_an_authorizer_a_broker_is_exempt_for_any_request() -> None:
    audit = AuditLog(lambda: 0.0)
    enforcement = enforcing(
        {QuotaEntity(user=""): {"request_percentage": 1.0}}, authorization=Authorization(EveryoneIsABroker(), audit)
    )
    assert enforcement.charge(request(client_id="broker-7", busy_s=1.0), NO_TOPICS, 0.0) == (NO_TOPICS, 0.0)
    assert enforcement.charge(request(busy_s=1.0), NO_TOPICS, 0.0)[1] == 1.0
    elsewhere = Authorization(EveryoneIsABroker(), audit, broker_listeners=("BROKERS",))
    enforcement = enforcing({QuotaEntity(user=""): {"request_percentage": 1.0}}, authorization=elsewhere)
    assert enforcement.charge(request(client_id="broker-7", busy_s=1.0), NO_TOPICS, 0.0)[1] == 1.0


def test_a_response_that_cannot_say_it_is_throttled_all_the_same() -> None:
    enforcement = enforcing(stored(request_percentage=1.0))
    response = SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b"")
    assert enforcement.charge(request(busy_s=1.0), response, 0.0) == (response, 1.0)


def test_a_fetch_beyond_the_quota_does_not_count() -> None:
    clock = Clock()
    enforcement = enforcing(stored(consumer_byte_rate=1000.0), clock)
    assert enforcement.throttle_fetch_ms(request(FETCH), 10_000) == 0
    assert enforcement.throttle_fetch_ms(request(FETCH), 600) == 600
    assert enforcement.throttle_fetch_ms(request(FETCH), 600) == 600
    clock.now_s += 0.6
    assert enforcement.throttle_fetch_ms(request(FETCH), 600) == 0
    assert enforcement.throttle_fetch_ms(request(FETCH), 0) == 0, "nothing to fetch, nothing to wait for"
    ((_, numbers),) = enforcement.metrics()
    assert (numbers.used, numbers.throttles) == (10_600, 2)


def test_a_fetch_that_needs_the_disk_gets_nothing_beyond_the_quota() -> None:
    """How much it would return is not known yet."""
    clock = Clock()
    enforcement = enforcing(stored(consumer_byte_rate=1000.0), clock)
    assert enforcement.throttle_fetch_ms(request(FETCH), 0, has_more=True) == 0
    enforcement.record_fetch(request(FETCH), 10_500)
    assert enforcement.throttle_fetch_ms(request(FETCH), 0, has_more=True) == 500
    assert enforcement.throttle_fetch_ms(request(FETCH), 0) == 0
    clock.now_s += 11.0
    assert enforcement.throttle_fetch_ms(request(FETCH), 0, has_more=True) == 0
    ((_, numbers),) = enforcement.metrics()
    assert (numbers.used, numbers.throttles) == (10_500, 1)


def test_a_fetch_is_throttled_for_request_time_too() -> None:
    enforcement = enforcing(stored(consumer_byte_rate=1000.0, request_percentage=10.0))
    enforcement.charge(request(busy_s=1.02), MetadataResponse(brokers=[], topics=[]), 1000.0)
    assert enforcement.throttle_fetch_ms(request(FETCH), 5_000) == 200
    assert enforcement.fetch_bytes_max(request(FETCH)) == 10_000, "the fetch did not count"


def test_a_fetch_may_return_the_rest_of_the_quota_but_never_too_little() -> None:
    enforcement = enforcing(stored(consumer_byte_rate=1000.0))
    assert enforcement.fetch_bytes_max(request(FETCH)) == 10_000
    assert enforcement.fetch_bytes_max(request(FETCH, user="bob")) == 2**31 - 1
    response = FetchResponse(responses=[])
    for size, throttle_s, left in ((8_000, 0.0, 2_000), (5_000, 3.0, 250)):
        fetch = request(FETCH)
        enforcement.record_fetch(fetch, size)
        assert enforcement.charge(fetch, response, 1000.0)[1] == throttle_s
        assert enforcement.fetch_bytes_max(request(FETCH)) == left


@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0, 3.0])
def test_a_consumer_that_is_blocked_still_waits_for_records(rate: float) -> None:
    """A fetch of no bytes would not wait: the consumer would ask as fast as the network goes."""
    enforcement = enforcing({}, callback=Fixed(Limit(rate, ("alice", ""))))
    assert enforcement.throttle_fetch_ms(request(FETCH), 1000) == 0
    assert enforcement.fetch_bytes_max(request(FETCH)) == 1


def test_a_batch_larger_than_the_quota_ever_allows_is_fetched_nevertheless() -> None:
    clock = Clock()
    enforcement = enforcing(stored(consumer_byte_rate=1000.0), clock)
    fetch = request(FETCH)
    assert enforcement.throttle_fetch_ms(fetch, 25_000) == 0
    assert enforcement.charge(fetch, FetchResponse(responses=[]), clock.now_s)[1] == 15.0
    assert enforcement.throttle_fetch_ms(request(FETCH), 25_000) == 11_000, "until all windows have passed"
    clock.now_s += 11.0
    assert enforcement.throttle_fetch_ms(request(FETCH), 25_000) == 0


def test_a_quota_that_changes_holds_from_the_next_request_on() -> None:
    enforcement = enforcing(stored(producer_byte_rate=1000.0))
    assert enforcement.charge(request(PRODUCE, size=20_000), None, 0.0)[1] == 10.0
    apply(enforcement, stored(producer_byte_rate=2000.0))
    assert enforcement.charge(request(PRODUCE, size=1000), None, 0.0)[1] == 0.5
    apply(enforcement, stored(consumer_byte_rate=1.0))
    assert enforcement.charge(request(PRODUCE, size=10**6), None, 0.0)[1] == 0.0


# --- Changes of topics ---


def test_changes_beyond_the_quota_are_refused_if_the_client_understands_that() -> None:
    clock = Clock()
    enforcement = enforcing(stored(controller_mutation_rate=1.0), clock)
    quota = enforcement.mutations(request(CREATE, version=7), 6)
    quota.charge("a", 14)
    quota.charge("a", 14)  # the controller decides again
    for topic in ("b", "b", "c"):
        with pytest.raises(KafkaError) as refused:
            quota.charge(topic, 1)
        assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    clock.now_s += 1.0
    assert quota.throttle_ms() == 2000
    clock.now_s += 2.0
    enforcement.mutations(request(CREATE, version=7), 6).charge("b", 1)


def test_changes_of_old_clients_are_made_and_throttled_afterwards() -> None:
    enforcement = enforcing(stored(controller_mutation_rate=1.0))
    quota = enforcement.mutations(request(CREATE, version=5), 6)
    quota.charge("a", 14)
    quota.charge("b", 1)
    assert quota.throttle_ms() == 4000
    ((labels, numbers),) = enforcement.metrics()
    assert labels == ("controller_mutation", "alice", "")
    assert (numbers.level, numbers.used, numbers.throttle_seconds) == (-4.0, 15, 4.0)


def test_changes_within_the_quota_are_not_throttled() -> None:
    enforcement = enforcing(stored(controller_mutation_rate=1.0))
    for version in (5, 6):
        quota = enforcement.mutations(request(CREATE, version=version), 6)
        quota.charge("a", 5)
        assert quota.throttle_ms() == 0
    quota = enforcement.mutations(request(CREATE, user="bob"), 6)
    quota.charge("a", 10**6)
    quota.charge("b", 10**6)
    assert quota.throttle_ms() == 0


# --- The operator's own quotas ---


class ByUser(ClientQuotaCallback):
    """Gives every user the same rate. The broker imports this class by its name."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        self.rate = float(configs["by.user.rate"])
        self.seen: list[Any] = []

    def limit(self, key: QuotaKey, principal: Principal, client_id: str) -> Limit | None:
        if client_id == "broken":
            raise ValueError
        return Limit(self.rate, (principal.name, "")) if key is QuotaKey.PRODUCER_BYTE_RATE else None

    def quotas_changed(self, quotas: StoredQuotas) -> None:
        self.seen.append(quotas)

    def cluster_changed(self, image: MetadataImage) -> None:
        self.seen.append(image)


class Fixed(ClientQuotaCallback):
    """Returns the same for every request."""

    def __init__(self, limit: Any) -> None:
        self._limit = limit

    def limit(self, key: QuotaKey, principal: Principal, client_id: str) -> Limit | None:
        found: Limit | None = self._limit
        return found


@pytest.mark.parametrize(
    "wrong",
    [
        1000.0,
        Limit("1000", ("alice", "")),  # type: ignore[arg-type]
        Limit(None, ("alice", "")),  # type: ignore[arg-type]
        Limit(float("nan"), ("alice", "")),
        Limit(float("inf"), ("alice", "")),
        Limit(-1.0, ("alice", "")),
        Limit(1000.0, ("alice", None)),  # type: ignore[arg-type]
        Limit(1000.0, "alice"),  # type: ignore[arg-type]
        Limit(1000.0, None),  # type: ignore[arg-type]
    ],
)
def test_a_client_has_no_quota_if_the_callback_returns_something_wrong(
    caplog: pytest.LogCaptureFixture, wrong: Any
) -> None:
    enforcement = enforcing({}, callback=Fixed(wrong))
    assert enforcement.charge(request(PRODUCE, size=10**9), None, 0.0) == (None, 0.0)
    assert enforcement.fetch_bytes_max(request(FETCH)) == 2**31 - 1
    assert "the quota callback failed" in caplog.text


def test_a_callback_determines_the_quotas(caplog: pytest.LogCaptureFixture) -> None:
    callback = load_callback(f"{__name__}.ByUser", {"by.user.rate": "1000"})
    assert isinstance(callback, ByUser)
    enforcement = enforcing(stored(producer_byte_rate=1.0), callback=callback)
    assert enforcement.is_active
    image, quotas = callback.seen
    assert quotas is image.client_quotas
    assert enforcement.charge(request(PRODUCE, size=11_000), None, 0.0)[1] == 1.0
    assert enforcement.charge(request(PRODUCE, size=11_000, user="bob"), None, 0.0)[1] == 1.0
    assert enforcement.charge(request(PRODUCE, size=11_000, client_id="broken"), None, 0.0)[1] == 0.0
    assert "the quota callback failed" in caplog.text


@pytest.mark.parametrize("name", ["no_such_module.C", "Nameless", "collections.Counter", "builtins.no_such"])
def test_a_callback_that_cannot_be_loaded_stops_the_broker(name: str) -> None:
    with pytest.raises(ConfigError, match=r"client\.quota\.callback\.class"):
        load_callback(name, {})
    assert load_callback("", {}) is None


@pytest.mark.parametrize("configs", [{}, {"by.user.rate": "fast"}])
def test_a_callback_that_cannot_be_configured_stops_the_broker(configs: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"client\.quota\.callback\.class.*configured"):
        load_callback(f"{__name__}.ByUser", configs)


# --- Metrics and connections ---


def test_the_metrics_are_bounded() -> None:
    enforcement = enforcing({QuotaEntity(client_id=""): {"producer_byte_rate": 1000.0}})
    for number in range(EXPORTED_MAX + 50):
        enforcement.charge(request(PRODUCE, client_id=f"{number}", size=500), None, 1000.0)
    exported = dict(enforcement.metrics())
    assert len(exported) == EXPORTED_MAX
    newest = exported["produce", "", f"{EXPORTED_MAX + 49}"]
    assert (newest.limit, newest.level, newest.used, newest.throttles) == (1000.0, 50.0, 500, 0)


def test_every_response_with_a_throttle_time_can_be_encoded_in_every_version() -> None:
    for api in APIS.values():
        for field in api.response.fields():
            if field.name == "throttle_time_ms":
                assert field.ignorable or set(field.versions) >= set(api.response.VERSIONS), api.name


def test_an_address_that_connects_too_fast_waits_for_a_window_at_most() -> None:
    rates = ConnectionRates(Windows(), {"10.0.0.1": 5.0, "10.0.0.2": 5.0}.get)
    assert all(rates.open("10.0.0.1", 0.0) == 0.0 for _ in range(50))
    assert rates.open("10.0.0.1", 0.0) == pytest.approx(0.2)
    assert rates.open("10.0.0.1", 0.0) == pytest.approx(0.2), "a connection that is closed does not count"
    assert rates.open("10.0.0.2", 0.0) == 0.0
    assert rates.open("10.0.0.3", 0.0) == 0.0
    assert rates.open("10.0.0.1", 0.21) == 0.0
    slow = ConnectionRates(Windows(), lambda host: 0.01)
    assert slow.open("10.0.0.1", 0.0) == 1.0
