"""The files of a secured cluster on this machine, in a folder that only its user can read.

``broker.properties`` is for all brokers, ``security/client.properties`` for the administrator's commands. Passwords are
random and generated once; ``broker.properties`` only refers to them (config providers). Each start issues new
certificates.
"""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

from parley.broker.config.presets import of_cluster
from parley.configuration.properties import read_properties
from parley.tools.secured_demo.certificates import Authority, write_private
from parley.tools.store_locks import Lock

MECHANISM: Final = "SCRAM-SHA-512"
BROKER, ADMIN = "broker", "admin"
"""The super users: the brokers' account and the administrator's."""
_SCRAM_LINE: Final = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="{}" password="{}";'
_BROKER_PROPERTIES: Final = """\
# The configuration of every broker of this cluster. The passwords are in {secrets}.
coordination.url={url}
log.dirs={data}
{replicas}

# Clients and brokers connect with TLS, and log in. If a client has a certificate, our authority must have issued it.
listeners=SASL_SSL://127.0.0.1:{port}
security.inter.broker.protocol=SASL_SSL
ssl.keystore.type=PEM
ssl.keystore.location={key_store}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
listener.name.sasl_ssl.ssl.client.auth=requested
sasl.enabled.mechanisms={mechanism}
sasl.mechanism.inter.broker.protocol={mechanism}
connections.max.reauth.ms=3600000
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={line}

# An operation that no ACL allows is denied, except to the brokers and one administrator.
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:{broker};User:{admin}
allow.everyone.if.no.acl.found=false

# Secrets: this file only names them. Passwords set by `parley configs` are encrypted in the store.
config.providers=file
config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider
config.providers.file.param.allowed.paths={folder}
password.encoder.secret=${{file:{secrets}:encoder}}
delegation.token.secret.key=${{file:{secrets}:tokens}}
"""


class SecuredFiles:
    """The files of the cluster in ``folder``. Missing files are created; certificates are always renewed."""

    def __init__(self, folder: Path) -> None:
        self._cluster = folder.absolute()
        self.folder = self._cluster / "security"
        self._cluster.mkdir(parents=True, exist_ok=True)
        self._cluster.chmod(0o700)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.authority = Authority(self.folder)
        self._key_store = self.authority.issue(self.folder / "broker.pem", BROKER)
        self.password_file = self.folder / "secrets.properties"
        if not self.password_file.exists():
            names = (BROKER, ADMIN, "encoder", "tokens")
            write_private(self.password_file, "".join(f"{name}={secrets.token_urlsafe(24)}\n" for name in names))

    @cached_property
    def passwords(self) -> Mapping[str, str]:
        """All generated passwords, by name: those of the users ``BROKER`` and ``ADMIN``, and the brokers' own
        secrets."""
        return read_properties(self.password_file)

    def store_lock(self) -> Lock:
        """Return the files that lock the server of a store. Creates missing passwords, and renews the certificate."""
        account, root = self.folder / "store-password", self.folder / "store-root-password"
        for file in (account, root):
            if not file.exists():
                write_private(file, f"{uuid.uuid4()}\n")  # Consul's tokens have this form
        certificate = self.authority.issue(self.folder / "store.pem", "store")
        return Lock(self.authority.certificate_file, certificate, account, root)

    def write_broker_properties(self, url: str, *, brokers: int, data: Path, port: int) -> Path:
        """Write the brokers' properties file, for the store at ``url``. Returns its path. ``brokers`` is the number of
        brokers, ``data`` their log directory (created if necessary), ``port`` that of their listener (0: any free
        port)."""
        data.mkdir(mode=0o700, exist_ok=True)
        path = self._cluster / "broker.properties"
        text = _BROKER_PROPERTIES.format(
            url=url,
            data=data,
            port=port,
            replicas="\n".join(f"{key}={value}" for key, value in of_cluster(brokers).items()),
            key_store=self._key_store,
            authority=self.authority.certificate_file,
            mechanism=MECHANISM,
            line=_SCRAM_LINE.format(BROKER, f"${{file:{self.password_file}:{BROKER}}}"),
            broker=BROKER,
            admin=ADMIN,
            folder=self.folder,
            secrets=self.password_file,
        )
        write_private(path, text)
        return path

    def write_admin_properties(self) -> Path:
        """Write the properties file of the administrator's commands. Returns its path."""
        return self.write_client_properties("client.properties", user=ADMIN, password=self.passwords[ADMIN])

    def write_client_properties(
        self, name: str, *, user: str = "", password: str = "", more: Mapping[str, str] | None = None
    ) -> Path:
        """Write a client's properties file and return its path. Without a user, the client does not log in. ``more``
        contains additional settings."""
        settings = {
            "security.protocol": "SASL_SSL" if user else "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate_file),
        }
        if user:
            settings |= {"sasl.mechanism": MECHANISM, "sasl.jaas.config": _SCRAM_LINE.format(user, password)}
        path = self.folder / name
        write_private(path, "".join(f"{key}={value}\n" for key, value in {**settings, **(more or {})}.items()))
        return path

    def write_password_setting(self, user: str, password: str) -> Path:
        """Write a file for ``parley configs --alter --user ... --add-config-file`` that sets a password. Returns its
        path."""
        path = self.folder / f"{user}.password.properties"
        write_private(path, f"{MECHANISM}=password={password}\n")
        return path

    @staticmethod
    def shown(path: Path) -> list[str]:
        """Return the lines of a properties file with passwords hidden."""
        return [re.sub(r'password="[^"]*"', 'password="[hidden]"', line) for line in path.read_text().splitlines()]
