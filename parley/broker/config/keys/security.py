"""TLS, SASL, principals and authorization. Most can be set per listener: listener.name.<name>.<key> (KIP-103)."""

from __future__ import annotations

from parley.broker.config.key_definition import (
    HIGH,
    LOW,
    PER_BROKER,
    Keys,
    boolean,
    class_name,
    double,
    integer,
    long,
    password,
    short,
    string,
    strings,
)
from parley.broker.config.keys.reasons import JAVA, KRAFT, TICKETS, TLS_VERSIONS, TOKEN_REFRESH
from parley.broker.security.principal import parse_super_users


def _are_principals(text: str) -> bool:
    try:
        parse_super_users(text)
    except ValueError:
        return False
    return True


class SecurityKeys(Keys, title="Security"):
    """TLS, SASL, principals and authorization. Most can be set per listener: listener.name.<name>.<key> (KIP-103)."""

    ssl_client_auth = string(
        "ssl.client.auth",
        "none",
        "Whether clients must present a certificate (required), may present one (requested), or need none (none).",
        allowed=("required", "requested", "none"),
        dynamic=PER_BROKER,
    )
    ssl_keystore_location = string(
        "ssl.keystore.location",
        None,
        "The file with the broker's private key and certificate chain.",
        dynamic=PER_BROKER,
    )
    ssl_keystore_type = string(
        "ssl.keystore.type",
        "JKS",
        "The format of ssl.keystore.location: JKS, PKCS12 or PEM.",
        dynamic=PER_BROKER,
    )
    ssl_keystore_password = password(
        "ssl.keystore.password",
        "The password of ssl.keystore.location.",
        dynamic=PER_BROKER,
    )
    ssl_key_password = password(
        "ssl.key.password",
        "The password of the private key.",
        dynamic=PER_BROKER,
    )
    ssl_keystore_key = password(
        "ssl.keystore.key",
        "The private key, as PEM text.",
        dynamic=PER_BROKER,
        since="2.7 (KIP-651)",
    )
    ssl_keystore_certificate_chain = password(
        "ssl.keystore.certificate.chain",
        "The certificate chain, as PEM text.",
        dynamic=PER_BROKER,
        since="2.7 (KIP-651)",
    )
    ssl_truststore_location = string(
        "ssl.truststore.location",
        None,
        "The file with the certificates that verify peers.",
        dynamic=PER_BROKER,
    )
    ssl_truststore_type = string(
        "ssl.truststore.type",
        "JKS",
        "The format of ssl.truststore.location: JKS, PKCS12 or PEM.",
        dynamic=PER_BROKER,
    )
    ssl_truststore_password = password(
        "ssl.truststore.password",
        "The password of ssl.truststore.location.",
        dynamic=PER_BROKER,
    )
    ssl_truststore_certificates = password(
        "ssl.truststore.certificates",
        "The certificates that verify peers, as PEM text.",
        dynamic=PER_BROKER,
        since="2.7 (KIP-651)",
    )
    ssl_crl_location = string(
        "ssl.crl.location",
        None,
        "The file with certificate revocation lists, in PEM. Certificates in these lists are rejected, and so are "
        "certificates whose issuer has no unexpired list. A replaced file takes effect within 5 seconds.",
        dynamic=PER_BROKER,
        since="",
    )
    ssl_protocol = string(
        "ssl.protocol",
        "TLSv1.3",
        "The newest TLS version to use.",
        dynamic=PER_BROKER,
        ignored=TLS_VERSIONS,
    )
    ssl_enabled_protocols = strings(
        "ssl.enabled.protocols",
        ("TLSv1.2", "TLSv1.3"),
        "The allowed TLS versions.",
        dynamic=PER_BROKER,
    )
    ssl_cipher_suites = strings(
        "ssl.cipher.suites",
        (),
        "The allowed cipher suites. An empty value leaves the choice to the TLS library.",
        dynamic=PER_BROKER,
    )
    ssl_endpoint_identification_algorithm = string(
        "ssl.endpoint.identification.algorithm",
        "https",
        "Whether the certificate of a broker must match its host name when another broker connects: https, or "
        "empty for no check.",
        dynamic=PER_BROKER,
        importance=LOW,
    )
    ssl_principal_mapping_rules = string(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        "How a principal is derived from the name in a client's certificate: a list of rules, of which the first "
        "match applies, as RULE:pattern/replacement/ with L or U, or DEFAULT.",
        importance=LOW,
        since="2.2 (KIP-371)",
    )
    ssl_allow_dn_changes = boolean(
        "ssl.allow.dn.changes",
        False,
        "Whether a certificate that replaces another while the broker runs can have another distinguished name.",
        importance=LOW,
        since="3.7 (KIP-978)",
    )
    ssl_allow_san_changes = boolean(
        "ssl.allow.san.changes",
        False,
        "Whether a certificate that replaces another while the broker runs can lack some of its alternative names.",
        importance=LOW,
        since="3.7 (KIP-978)",
    )
    ssl_ktls_enable = boolean(
        "ssl.ktls.enable",
        False,
        "Whether the Linux kernel (module tls) encrypts the responses to clients with TLS 1.3, so that records are "
        "sent from the page cache without being copied into the broker.",
        importance=LOW,
        since="",
    )
    ssl_engine_factory_class = class_name(
        "ssl.engine.factory.class",
        "A class that creates TLS engines.",
        dynamic=PER_BROKER,
        importance=LOW,
        since="2.6 (KIP-519)",
        ignored=JAVA,
    )
    ssl_keymanager_algorithm = string(
        "ssl.keymanager.algorithm",
        "SunX509",
        "The algorithm of Java's key manager.",
        dynamic=PER_BROKER,
        ignored=JAVA,
    )
    ssl_trustmanager_algorithm = string(
        "ssl.trustmanager.algorithm",
        "PKIX",
        "The algorithm of Java's trust manager.",
        dynamic=PER_BROKER,
        ignored=JAVA,
    )
    ssl_provider = string(
        "ssl.provider",
        None,
        "The name of Java's security provider.",
        dynamic=PER_BROKER,
        ignored=JAVA,
    )
    ssl_secure_random_implementation = string(
        "ssl.secure.random.implementation",
        None,
        "The name of Java's random number generator.",
        dynamic=PER_BROKER,
        importance=LOW,
        since="0.10.1",
        ignored=JAVA,
    )
    sasl_enabled_mechanisms = strings(
        "sasl.enabled.mechanisms",
        ("GSSAPI",),
        "The mechanisms that clients can log in with: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI.",
        dynamic=PER_BROKER,
        since="0.10.0 (KIP-43)",
    )
    sasl_mechanism_inter_broker_protocol = string(
        "sasl.mechanism.inter.broker.protocol",
        "GSSAPI",
        "The mechanism that brokers use to log in to each other.",
        dynamic=PER_BROKER,
        since="0.10.0 (KIP-43)",
    )
    sasl_mechanism_controller_protocol = string(
        "sasl.mechanism.controller.protocol",
        "GSSAPI",
        "The mechanism that brokers use to log in to Kafka's controllers.",
        importance=HIGH,
        since="2.8 (KIP-631)",
        ignored=KRAFT,
    )
    sasl_jaas_config = password(
        "sasl.jaas.config",
        "The login of a listener and mechanism, as listener.name.<listener>.<mechanism>.sasl.jaas.config, in the "
        "format of a JAAS entry.",
        dynamic=PER_BROKER,
        since="0.10.2 (KIP-85)",
    )
    sasl_server_max_receive_size = integer(
        "sasl.server.max.receive.size",
        524_288,
        "The maximum size of a request before the client has logged in.",
        at_least=1,
        unit="bytes",
        since="3.3",
    )
    sasl_server_callback_handler_class = class_name(
        "sasl.server.callback.handler.class",
        "Your own class that verifies logins, per listener and mechanism.",
        since="2.0 (KIP-86)",
    )
    sasl_client_callback_handler_class = class_name(
        "sasl.client.callback.handler.class",
        "Your own class that supplies this broker's credentials when it logs in to another broker.",
        since="2.0 (KIP-86)",
        ignored=JAVA,
    )
    sasl_login_class = class_name(
        "sasl.login.class",
        "Your own class that performs this broker's login.",
        since="2.0 (KIP-86)",
        ignored=JAVA,
    )
    sasl_login_callback_handler_class = class_name(
        "sasl.login.callback.handler.class",
        "How this broker gets its OAUTHBEARER tokens: OAuthBearerLoginCallbackHandler requests them from "
        "sasl.oauthbearer.token.endpoint.url, OAuthBearerUnsecuredLoginCallbackHandler creates unsigned tokens.",
        since="2.0 (KIP-86)",
    )
    sasl_login_connect_timeout_ms = integer(
        "sasl.login.connect.timeout.ms",
        None,
        "How long OAUTHBEARER waits for a connection to the token issuer.",
        unit="ms",
        importance=LOW,
        since="3.1 (KIP-768)",
    )
    sasl_login_read_timeout_ms = integer(
        "sasl.login.read.timeout.ms",
        None,
        "How long OAUTHBEARER waits for a response from the token issuer.",
        unit="ms",
        importance=LOW,
        since="3.1 (KIP-768)",
    )
    sasl_login_retry_backoff_ms = long(
        "sasl.login.retry.backoff.ms",
        100,
        "How long OAUTHBEARER waits before it retries a request to the token issuer; doubled each time.",
        unit="ms",
        importance=LOW,
        since="3.1 (KIP-768)",
    )
    sasl_login_retry_backoff_max_ms = long(
        "sasl.login.retry.backoff.max.ms",
        10_000,
        "The maximum to which sasl.login.retry.backoff.ms grows.",
        unit="ms",
        importance=LOW,
        since="3.1 (KIP-768)",
    )
    sasl_login_refresh_window_factor = double(
        "sasl.login.refresh.window.factor",
        0.8,
        "The fraction of its lifetime after which an OAUTHBEARER token is refreshed.",
        at_least=0.5,
        at_most=1,
        dynamic=PER_BROKER,
        since="2.0 (KIP-255)",
    )
    sasl_login_refresh_window_jitter = double(
        "sasl.login.refresh.window.jitter",
        0.05,
        "The maximum random fraction of its lifetime that is added to the time at which a token is refreshed.",
        at_least=0,
        at_most=0.25,
        dynamic=PER_BROKER,
        since="2.0 (KIP-255)",
        ignored=TOKEN_REFRESH,
    )
    sasl_login_refresh_min_period_seconds = short(
        "sasl.login.refresh.min.period.seconds",
        60,
        "The minimum time between two refreshes of a token.",
        unit="s",
        dynamic=PER_BROKER,
        since="2.0 (KIP-255)",
        ignored=TOKEN_REFRESH,
    )
    sasl_login_refresh_buffer_seconds = short(
        "sasl.login.refresh.buffer.seconds",
        300,
        "The minimum time before its expiry at which a token is refreshed.",
        unit="s",
        dynamic=PER_BROKER,
        since="2.0 (KIP-255)",
        ignored=TOKEN_REFRESH,
    )
    sasl_kerberos_service_name = string(
        "sasl.kerberos.service.name",
        None,
        "The first part of the brokers' Kerberos principals, for logins between brokers with GSSAPI.",
        dynamic=PER_BROKER,
    )
    sasl_kerberos_kinit_cmd = string(
        "sasl.kerberos.kinit.cmd",
        "/usr/bin/kinit",
        "The program that renews Kerberos tickets.",
        dynamic=PER_BROKER,
        ignored=TICKETS,
    )
    sasl_kerberos_ticket_renew_window_factor = double(
        "sasl.kerberos.ticket.renew.window.factor",
        0.8,
        "The fraction of its lifetime, from 0 to 1, after which a Kerberos ticket is renewed.",
        at_least=0,
        at_most=1,
        dynamic=PER_BROKER,
        ignored=TICKETS,
    )
    sasl_kerberos_ticket_renew_jitter = double(
        "sasl.kerberos.ticket.renew.jitter",
        0.05,
        "The maximum random fraction of its lifetime that is added to the time at which a Kerberos ticket is renewed.",
        at_least=0,
        at_most=1,
        dynamic=PER_BROKER,
        ignored=TICKETS,
    )
    sasl_kerberos_min_time_before_relogin = long(
        "sasl.kerberos.min.time.before.relogin",
        60_000,
        "The minimum time between two renewals of a Kerberos ticket.",
        unit="ms",
        dynamic=PER_BROKER,
        ignored=TICKETS,
    )
    sasl_kerberos_principal_to_local_rules = strings(
        "sasl.kerberos.principal.to.local.rules",
        ("DEFAULT",),
        "How a Kerberos principal is mapped to a user name: a list of rules, of which the first that applies is "
        "used. A rule is DEFAULT for the first part of a principal of the default realm, or RULE:[n:format] with an "
        "optional pattern in parentheses, s/from/to/g, and /L or /U.",
        dynamic=PER_BROKER,
    )
    sasl_oauthbearer_jwks_endpoint_url = string(
        "sasl.oauthbearer.jwks.endpoint.url",
        None,
        "The address of the keys that verify tokens.",
        since="3.1 (KIP-768)",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms = long(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        3_600_000,
        "How often the keys that verify tokens are fetched again.",
        unit="ms",
        importance=LOW,
        since="3.1 (KIP-768)",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms = long(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        100,
        "How long to wait before a failed fetch of the keys is retried; doubled each time.",
        unit="ms",
        importance=LOW,
        since="3.1 (KIP-768)",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms = long(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        10_000,
        "The maximum to which sasl.oauthbearer.jwks.endpoint.retry.backoff.ms grows.",
        unit="ms",
        importance=LOW,
        since="3.1 (KIP-768)",
    )
    sasl_oauthbearer_token_endpoint_url = string(
        "sasl.oauthbearer.token.endpoint.url",
        None,
        "The address at which this broker gets its own tokens.",
        since="3.1 (KIP-768)",
    )
    sasl_oauthbearer_client_credentials_client_id = string(
        "sasl.oauthbearer.client.credentials.client.id",
        None,
        "The id of this broker at the token endpoint; defaults to the option clientId of its JAAS entry.",
        since="4.1 (KIP-1139)",
    )
    sasl_oauthbearer_client_credentials_client_secret = password(
        "sasl.oauthbearer.client.credentials.client.secret",
        "The secret of this broker at the token endpoint; defaults to the option clientSecret of its JAAS entry.",
        since="4.1 (KIP-1139)",
    )
    sasl_oauthbearer_scope = string(
        "sasl.oauthbearer.scope",
        None,
        "The scope that this broker requests from the token endpoint; defaults to the option scope of its JAAS entry.",
        since="4.1 (KIP-1139)",
    )
    sasl_oauthbearer_expected_audience = strings(
        "sasl.oauthbearer.expected.audience",
        (),
        "The audiences, at least one of which a token must name.",
        importance=HIGH,
        since="3.1 (KIP-768)",
    )
    sasl_oauthbearer_expected_issuer = string(
        "sasl.oauthbearer.expected.issuer",
        None,
        "The issuer that tokens must name.",
        importance=HIGH,
        since="3.1 (KIP-768)",
    )
    sasl_oauthbearer_clock_skew_seconds = integer(
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        "The maximum difference between the clocks of this broker and the token issuer.",
        unit="s",
        importance=LOW,
        since="3.1 (KIP-768)",
    )
    sasl_oauthbearer_scope_claim_name = string(
        "sasl.oauthbearer.scope.claim.name",
        "scope",
        "The claim of a token that contains its scopes.",
        importance=LOW,
        since="3.1 (KIP-768)",
    )
    sasl_oauthbearer_sub_claim_name = string(
        "sasl.oauthbearer.sub.claim.name",
        "sub",
        "The claim of a token that contains its subject.",
        importance=LOW,
        since="3.1 (KIP-768)",
    )
    principal_builder_class = class_name(
        "principal.builder.class",
        "Your own Python class that changes the principal of a connection. Its method build takes the session, whose "
        "principal comes from the login or the certificate, and returns a principal.",
        dynamic=PER_BROKER,
    )
    authorizer_class_name = string(
        "authorizer.class.name",
        "",
        "The authorizer of requests: StandardAuthorizer under Kafka's name "
        "(org.apache.kafka.metadata.authorizer.StandardAuthorizer), which decides by ACLs; an entry point of the "
        "group parley.authorizers; or a class as package.module.Class. An empty value means that every client may do "
        "everything.",
        importance=LOW,
    )
    super_users = string(
        "super.users",
        "",
        "Principals that may do everything, regardless of ACLs, separated by semicolons: User:admin;User:broker. "
        "Include the principals of the brokers: a starting broker has no ACLs yet when the controller requests "
        "information about its logs.",
        check=_are_principals,
        form="principals separated by semicolons, each as kind:name",
    )
    allow_everyone_if_no_acl_found = boolean(
        "allow.everyone.if.no.acl.found",
        False,
        "Whether every client may do everything with a resource that has no ACLs.",
    )
    password_encoder_secret = password(
        "password.encoder.secret",
        "The secret that encrypts passwords that are set while brokers run, the same for all brokers. Without it, "
        "passwords are stored unencrypted.",
        since="1.1 (KIP-226)",
    )
    password_encoder_old_secret = password(
        "password.encoder.old.secret",
        "The former password.encoder.secret, until the passwords that it encrypts have been set again.",
        since="1.1 (KIP-226)",
    )
    password_encoder_iterations = integer(
        "password.encoder.iterations",
        4096,
        "The iterations of PBKDF2 that derive a key from password.encoder.secret.",
        at_least=1024,
        importance=LOW,
        since="1.1 (KIP-226)",
    )
    security_providers = string(
        "security.providers",
        None,
        "Java's security providers.",
        importance=LOW,
        since="2.4 (KIP-492)",
        ignored=JAVA,
    )
    delegation_token_secret_key = password(
        "delegation.token.secret.key",
        "The secret that delegation tokens are signed with, the same for all brokers. Without it, delegation tokens "
        "are disabled.",
        since="2.8 (KIP-48)",
    )
    delegation_token_master_key = password(
        "delegation.token.master.key",
        "The name of delegation.token.secret.key before Kafka 2.8.",
        since="1.1 (KIP-48)",
        deprecated="delegation.token.secret.key",
    )
    delegation_token_max_lifetime_ms = long(
        "delegation.token.max.lifetime.ms",
        604_800_000,
        "The maximum lifetime of a delegation token, renewals included.",
        at_least=1,
        unit="ms",
        since="1.1 (KIP-48)",
    )
    delegation_token_expiry_time_ms = long(
        "delegation.token.expiry.time.ms",
        86_400_000,
        "How long a delegation token is valid without a renewal.",
        at_least=1,
        unit="ms",
        since="1.1 (KIP-48)",
    )
    delegation_token_max_per_requester = integer(
        "delegation.token.max.per.requester",
        1000,
        "The maximum number of existing tokens that one principal has created, so that no client fills the metadata "
        "with tokens. Raise it for a scheduler that creates a token for each of its jobs.",
        at_least=1,
        importance=LOW,
        since="",
    )
    delegation_token_expiry_check_interval_ms = long(
        "delegation.token.expiry.check.interval.ms",
        3_600_000,
        "How often the broker looks for expired tokens.",
        at_least=1,
        unit="ms",
        importance=LOW,
        since="1.1 (KIP-48)",
    )
