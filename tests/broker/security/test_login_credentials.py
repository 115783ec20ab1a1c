"""The credentials that logins are verified against come from the metadata."""

from __future__ import annotations

from base64 import b64encode

from parley.broker.config import BrokerConfig
from parley.broker.metadata.changes import Change, ClusterSecretSet, DelegationTokenReplaced, Delta, ScramUserReplaced
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.security.delegation_tokens.delegation_token import DelegationToken
from parley.broker.security.login_credentials import DECOY_SECRET, LoginCredentials, token_hmac
from parley.broker.security.principal import user
from parley.protocol.security.scram import ScramCredential, credential_of, salted_password

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
ALICE = ScramCredential(b"salt", 8192, b"stored", b"server")
TOKEN = DelegationToken("id", user("alice"), user("alice"), (), issued_ms=0, expires_ms=100, max_ms=200)


def source(*changes: Change, now_ms: int = 50, **config: str) -> LoginCredentials:
    given = {key.replace("_", "."): value for key, value in config.items()}
    metadata = Metadata(MetadataImage("c").with_changes(changes))
    return LoginCredentials(metadata, BrokerConfig.from_properties(given), lambda: now_ms)


def test_a_user_has_the_credentials_of_the_mechanisms_that_were_set() -> None:
    users = source(ScramUserReplaced("alice", {SHA_256: ALICE}))
    assert users.scram(SHA_256, "alice") == ALICE
    assert users.scram(SHA_512, "alice") is None
    assert users.scram(SHA_256, "bob") is None


def test_the_users_of_the_store_count_until_there_is_metadata_from_the_controller() -> None:
    metadata = Metadata(MetadataImage("c", controller_epoch=4, version=-1))
    users = LoginCredentials(metadata, BrokerConfig.from_properties({}), lambda: 50)
    users.stored = MetadataImage("c").with_changes([ScramUserReplaced("alice", {SHA_256: ALICE})])
    assert users.scram(SHA_256, "alice") == ALICE
    metadata.replace(MetadataImage("c", controller_epoch=4), Delta(4, 0, ()))
    assert users.scram(SHA_256, "alice") is None


def test_decoys_are_the_same_on_each_broker_and_have_iterations_that_occur() -> None:
    changes = (ScramUserReplaced("alice", {SHA_256: ALICE}), ClusterSecretSet(DECOY_SECRET, b"secret"))
    one, other = source(*changes), source(*changes)
    assert one.decoy(SHA_256, "bob") == other.decoy(SHA_256, "bob")
    assert one.decoy(SHA_256, "bob").iterations == 8192
    assert one.decoy(SHA_256, "bob") != one.decoy(SHA_256, "carol")


def test_a_decoy_changes_only_if_it_gets_the_new_number_of_iterations() -> None:
    def user_with(name: str, iterations: int) -> Change:
        return ScramUserReplaced(name, {SHA_256: ScramCredential(b"s", iterations, b"k", b"k")})

    before = [ClusterSecretSet(DECOY_SECRET, b"secret"), user_with("a", 4096), user_with("b", 8192)]
    old, new = source(*before), source(*before, user_with("c", 6000))
    names = [f"user-{number}" for number in range(60)]
    changed = [name for name in names if old.decoy(SHA_256, name) != new.decoy(SHA_256, name)]
    assert 0 < len(changed) < 40
    assert {new.decoy(SHA_256, name).iterations for name in changed} == {6000}
    assert {new.decoy(SHA_512, name).iterations for name in names} == {4096}, "no user has this mechanism"


def test_a_token_logs_its_owner_in_until_it_expires() -> None:
    login = source(DelegationTokenReplaced("id", TOKEN), delegation_token_secret_key="key").token(SHA_256, "id")
    assert login is not None
    assert (login.owner, login.expires_at_ms) == (user("alice"), 100)
    password = b64encode(token_hmac(b"key", "id"))
    salt, iterations = login.credential.salt, login.credential.iterations
    salted = salted_password(SHA_256, password, salt, iterations)
    assert credential_of(SHA_256, salted, salt, iterations) == login.credential


def test_there_is_no_login_with_an_unknown_or_expired_token_or_without_the_key() -> None:
    change = DelegationTokenReplaced("id", TOKEN)
    assert source(change, delegation_token_secret_key="key").token(SHA_256, "other") is None
    assert source(change, now_ms=101, delegation_token_secret_key="key").token(SHA_256, "id") is None
    assert source(change).token(SHA_256, "id") is None
