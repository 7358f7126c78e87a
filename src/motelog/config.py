"""The one configuration tree of a process: which roles it runs and each role's section.

Owns: MotelogConfig, AdminConfig, the refusal of addresses that are not loopback.
Must not touch: how a file is read (core.config), what a role does with its section.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from motelog import runtime_store
from motelog.core import config as loader
from motelog.core.addresses import parse_address
from motelog.core.broker.config import VIP_PORT_DISTANCE, BrokerConfig
from motelog.core.config import Below, Loaded, SectionFault, refuse
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.net.config import ListenerConfig, Protocol, TlsKeys, TlsModeKeys, is_loopback
from motelog.core.toml_lines import KeyPath
from motelog.gateway.access.config import AccessConfig
from motelog.gateway.config import GatewayConfig
from motelog.gateway.metrics import PLAIN
from motelog.logs import LogConfig

Role = Literal["namesrv", "broker", "gateway", "console"]

# Variables that are not configuration keys: those of clients, the build and tests.
OTHER_VARIABLES: Final = (
    "MOTELOG_CONTEXT",
    "MOTELOG_CREDENTIALS",
    "MOTELOG_TLS",
    "MOTELOG_TOKEN_FILE",
    "MOTELOG_SESSION_KILLS",
    "MOTELOG_VECTORS",
)

#: The origin of a key that was set at runtime begins with this.
RUNTIME_STORE: Final = "runtime store"

NOT_LOOPBACK = (
    "{text} is not a loopback address, and this listener has no TLS: anyone on the network could "
    "read and change everything; use 127.0.0.1 here, and a [[listener]] for clients elsewhere"
)
NAMESRV_IS_PLAIN = (
    "it is for name servers with TLS, but the one of this process has none: add to [namesrv]"
    ' tls_certificate = "PATH" and tls_key = "PATH"'
)
NAMESRV_IS_SECURE = (
    "the name server of this process requires TLS, so the broker that registers there needs"
    ' tls_file = "PATH": the authority of namesrv.tls_certificate'
)
GATEWAY_NEEDS_A_MASTER: Final = (
    "the gateway would append to this process's broker, which is a slave (broker.id above 0): set"
    " gateway.namesrv, so that it finds the master"
)
ONE_IS_PLAIN = (
    "a client uses either TLS or plain connections for both name servers and brokers, but"
    " {secure} requires TLS and {plain} has none: add to [{plain}], or to a listener for it,"
    " tls_certificate and tls_key"
)
ADMIN_NEEDS = (
    "{address} can be reached from other machines, and without tokens anyone who reaches the"
    " admin listener may do everything: add to [admin] {lines}"
)
#: What sets each login, in [access].
LOGIN_KEYS: Final = {
    "certificate": "certificate_users = true",
    "jwt": 'jwt_keys_file = "PATH" and jwt_audience',
    "password": 'password_file = "PATH"',
    "scram": 'password_file = "PATH"',
    "http": 'http_url = "URL"',
    "anonymous": "allow_anonymous = true beside a login or acl_file",
}
NO_SUCH_LOGIN = (
    "the listener {name} has the login {login}, which no client can use: add to [access] {key}"
)
NEEDS_LOGIN = (
    "the listener {name} on {address} can be reached from other machines and has no login: "
    "add {lines}"
)
MQTT_LOGIN = (
    'tls_client_ca = "PATH", so that each client needs a certificate, or logins: '
    '[access] password_file = "PATH" (or insecure = "I know")'
)
MQTT_ANONYMOUS = (
    "logins = [...] to it, with those of [access] except anonymous, or take allow_anonymous out of"
    ' [access] (or insecure = "I know")'
)
REMOTING_LOGIN = (
    'tls_client_ca = "PATH", so that each client needs a certificate, or accounts: '
    '[{section}] acl_file = "PATH" (or insecure = "I know")'
)
ADMIN_LOGIN = 'tokens: [admin] tokens_file = "PATH" (`motelog token create` makes it)'
#: The role that each listener serves.
ROLES: Final[dict[Protocol, Role]] = {
    "mqtt": "gateway",
    "broker": "broker",
    "namesrv": "namesrv",
    "admin": "console",
}


class AdminConfig(TlsKeys, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The admin HTTP listener: pages for browsers, the API below /api/v1, /status, /health/live,
    /health/ready, /metrics."""

    listen: str = "127.0.0.1:8080"
    """HOST:PORT; port 0 takes any free port."""

    hosts: tuple[str, ...] = ()
    """Host names that requests to this server may carry, besides its address and localhost. Others
    are refused."""

    tokens_file: str = ""
    """File of tokens, created by `motelog token create`; then every request except health checks
    must carry a token. Empty: anyone who reaches the listener may do everything, so it must listen
    on a loopback address."""

    audit_file: str = ""
    """The audit file: a line of JSON for each change that is requested. While it cannot be
    written, changes are refused. Empty: the lines go to the log."""

    runtime_file: str = ""
    """File of the keys that were set with `motelog config set`. Empty: `config/runtime.json` in the
    folder for messages, if this process has a broker."""

    connections_max: Annotated[int, msgspec.Meta(ge=1)] = 256
    """Connections at a time, of all admin listeners together. One more closes the one that has been
    idle longest. Each takes a descriptor."""

    insecure: Literal["", "I know"] = ""
    """Allows an address that other machines reach to have no TLS, for example behind a proxy that
    has it. Tokens are required there in any case."""

    def __post_init__(self) -> None:
        refuse(self, self._faults())

    def _faults(self) -> Iterator[SectionFault]:
        yield from self.tls_faults()
        try:
            host, _ = parse_address(self.listen)
        except ValueError as exc:
            yield SectionFault(str(exc), ("listen",))
            return
        lines = []
        if not self.tokens_file:
            lines.append('tokens_file = "PATH" (`motelog token create` makes it)')
        if not self.tls_certificate and not self.insecure:
            lines.append('tls_certificate = "PATH" and tls_key = "PATH" (or insecure = "I know")')
        if lines and not is_loopback(host):
            text = ADMIN_NEEDS.format(address=self.listen, lines=", and ".join(lines))
            yield SectionFault(text, ("listen", "tokens_file", "tls_certificate", "insecure"))


class MotelogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The configuration of one process; ``roles`` says which of the sections it uses."""

    roles: tuple[Role, ...] = ("namesrv", "broker", "gateway", "console")
    """What this process runs, in any order."""

    namesrv: NamesrvConfig = msgspec.field(default_factory=NamesrvConfig)
    """The name server of this process."""

    broker: BrokerConfig | None = None
    """The broker of this process. No default: the user must choose where to keep messages."""

    gateway: GatewayConfig = msgspec.field(default_factory=GatewayConfig)
    """The MQTT gateway of this process."""

    access: AccessConfig = msgspec.field(default_factory=AccessConfig)
    """Logins and rights of MQTT clients."""

    admin: AdminConfig = msgspec.field(default_factory=AdminConfig)
    """The console of this process."""

    listener: tuple[ListenerConfig, ...] = ()
    """Further addresses for clients of any role of this process: with TLS, WebSocket, behind
    balancers, for other machines."""

    log: LogConfig = msgspec.field(default_factory=LogConfig)
    """What this process writes to standard error."""

    def __post_init__(self) -> None:
        refuse(self, self._faults())

    def listeners_for(self, protocol: Protocol) -> tuple[ListenerConfig, ...]:
        """Return the further listeners of one role; none if this process does not run it."""
        return tuple(one for one in self.listeners if one.protocol == protocol)

    @property
    def listeners(self) -> tuple[ListenerConfig, ...]:
        """The further listeners of the roles that this process runs."""
        return tuple(one for one in self.listener if ROLES[one.protocol] in self.roles)

    @property
    def runtime_path(self) -> str | None:
        """The file of keys that are set at runtime; None if this process has none."""
        if self.admin.runtime_file:
            return self.admin.runtime_file
        if self.broker is None:
            return None
        return str(Path(self.broker.store.directory) / "config" / "runtime.json")

    def _faults(self) -> Iterator[SectionFault]:
        if not self.roles:
            yield SectionFault("roles is empty: there is nothing to run", ("roles",))
        if len(set(self.roles)) < len(self.roles):
            text = f"roles names one role twice: {', '.join(self.roles)}"
            yield SectionFault(text, ("roles",))
        if "broker" in self.roles and self.broker is None:
            text = 'the role "broker" needs broker.store.directory: where to keep messages'
            yield SectionFault(text, ("roles", "broker"))
        if "gateway" in self.roles and "broker" not in self.roles and not self.gateway.namesrv:
            text = (
                'the role "gateway" needs the role "broker" in the same process, or '
                "gateway.namesrv: the name servers of the brokers that store its messages"
            )
            yield SectionFault(text, ("roles", "gateway.namesrv"))
        if (
            "gateway" in self.roles
            and self.gateway.workers > 1
            and "namesrv" not in self.roles
            and not (self.gateway.namesrv or (self.broker is not None and self.broker.namesrv))
        ):
            text = (
                f"{self.gateway.workers} workers find their broker through a name server: "
                'gateway.workers needs gateway.namesrv, or the role "namesrv" in the same process'
            )
            yield SectionFault(text, ("gateway.workers", "gateway.namesrv", "broker", "roles"))
        is_beside_slave = self.broker is not None and self.broker.id and "gateway" in self.roles
        if is_beside_slave and "broker" in self.roles and not self.gateway.namesrv:
            yield SectionFault(GATEWAY_NEEDS_A_MASTER, ("broker.id", "gateway.namesrv"))
        if "namesrv" in self.roles and "broker" in self.roles and self.broker is not None:
            yield from self._remoting_faults(self.broker)
        yield from self._listener_faults()
        yield from self._port_faults()

    def _remoting_faults(self, broker: BrokerConfig) -> Iterator[SectionFault]:
        """Yield the faults where name server and broker of one process do not fit together."""
        ways = {
            "namesrv": _ways_of(self.namesrv, *self.listeners_for("namesrv")),
            "broker": _ways_of(broker, *self.listeners_for("broker")),
        }
        for secure, plain in (("namesrv", "broker"), ("broker", "namesrv")):
            if ways[secure] == {"tls"} and ways[plain] == {"plain"}:
                text = ONE_IS_PLAIN.format(secure=secure, plain=plain)
                yield SectionFault(text, (f"{secure}.tls_certificate",))
        if broker.namesrv:
            return  # it registers elsewhere
        if broker.tls_file and not self.namesrv.tls_certificate:
            yield SectionFault(NAMESRV_IS_PLAIN, ("broker.tls_file",))
        if self.namesrv.takes_tls_alone and not broker.tls_file:
            yield SectionFault(NAMESRV_IS_SECURE, ("namesrv.tls_certificate",))

    def _listener_faults(self) -> Iterator[SectionFault]:
        names = [one.name for one in self.listener]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield SectionFault(f"two listeners are named {name}", ("listener",))
        for one in self.listener:
            for login in sorted(set(one.logins) - self.access.logins):
                text = NO_SUCH_LOGIN.format(name=one.name, login=login, key=LOGIN_KEYS[login])
                yield SectionFault(text, ("listener",))
            if one.is_reached_from_afar:
                needed = self._needed_logins(one)
                if needed:
                    text = NEEDS_LOGIN.format(name=one.name, address=one.address, lines=needed)
                    yield SectionFault(text, ("listener",))
            if one.name == PLAIN:
                text = f"the name {PLAIN} is reserved for the listener of gateway.listen"
                yield SectionFault(text, ("listener",))
            if one.protocol == "mqtt" and one.unix_path is not None and self.gateway.workers > 1:
                text = f"the listener {one.name}: workers cannot share a Unix socket"
                yield SectionFault(text, ("listener", "gateway.workers"))

    def _needed_logins(self, listener: ListenerConfig) -> str:
        """Return the lines that give a listener for other machines a login."""
        knows_clients = listener.needs_client_certificates or bool(listener.insecure)
        match listener.protocol:
            case "admin":
                # As in [admin]: without a token, everyone may do everything.
                return "" if self.admin.tokens_file else ADMIN_LOGIN
            case "mqtt":
                logins = listener.logins or self.access.logins
                if knows_clients or not self.access.has_logins:
                    return "" if knows_clients else MQTT_LOGIN
                return MQTT_ANONYMOUS if "anonymous" in logins else ""
            case protocol:
                section = self.namesrv if protocol == "namesrv" else self.broker
                has_acl = section is None or bool(section.acl_file)
                return "" if knows_clients or has_acl else REMOTING_LOGIN.format(section=protocol)

    def _port_faults(self) -> Iterator[SectionFault]:
        """Yield a fault for each port that two listeners would share."""
        taken: dict[int, list[tuple[str, str, str]]] = {}
        for name, key, host, port in self._listeners():
            before = taken.setdefault(port, [])
            for other, other_key, other_host in before:
                if _are_shared(host, other_host):
                    text = f"{other} and {name} have the same port {port}"
                    yield SectionFault(text, (key, other_key))
                    break
            before.append((name, key, host))

    def _listeners(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield (name, key, host, port) of each listener with a fixed port."""
        broker = self.broker
        feeds = broker is not None and broker.replicate != "off"
        sections: list[tuple[Role, str, str]] = [
            ("console", "admin.listen", self.admin.listen),
            ("namesrv", "namesrv.listen", self.namesrv.listen),
            ("broker", "broker.listen", broker.listen if broker else ""),
            ("broker", "broker.ha_listen", broker.ha_address if broker and feeds else ""),
            ("gateway", "gateway.listen", self.gateway.listen),
        ]
        listeners = [
            *((role, key, key, text) for role, key, text in sections),
            *(
                (ROLES[one.protocol], f"the listener {one.name}", "listener", one.address)
                for one in self.listener
            ),
        ]
        for role, name, key, text in listeners:
            try:
                host, port = parse_address(text, port_min=1)
            except ValueError:
                continue  # any free port, or a fault that is reported elsewhere
            if role in self.roles:
                yield name, key, host, port
                if key == "broker.listen" and broker is not None and broker.vip:
                    vip = "the VIP port two below broker.listen (none with broker.vip = false)"
                    yield vip, key, host, port - VIP_PORT_DISTANCE


def _are_shared(host: str, other: str) -> bool:
    """Return whether two listeners on these hosts cannot have the same port."""
    one, two = ("127.0.0.1" if name == "localhost" else name for name in (host, other))
    if one == two or "::" in (one, two):  # "::" accepts IPv4 as well
        return True
    return "0.0.0.0" in (one, two) and ":" not in one + two


def _ways_of(*listeners: TlsModeKeys) -> set[str]:
    """Return how clients may connect: "tls", "plain", or both."""
    ways = {"tls" for one in listeners if one.tls_certificate}
    return ways | {"plain" for one in listeners if not one.takes_tls_alone}


def load_config(path: str | Path) -> MotelogConfig:
    """Return the checked tree of a file and the environment, or raise ConfigFaultsError."""
    return load_with_origins(path).section


def load_with_origins(
    path: str | Path, runtime: Mapping[str, str] | None = None
) -> Loaded[MotelogConfig]:
    """Return what ``load_config`` does, with the origin of each value.

    File and environment override keys that were set at runtime; ``runtime`` replaces the stored
    ones.
    """

    def load(below: Below | None) -> Loaded[MotelogConfig]:
        return loader.load_file(MotelogConfig, path, os.environ, check=_check_leaf, below=below)

    loaded = load(None)
    place = loaded.section.runtime_path
    if place is None:
        return loaded
    texts = runtime_store.load(place) if runtime is None else runtime
    return load(Below(f"{RUNTIME_STORE} {place}", texts)) if texts else loaded


def config_of(table: dict[str, Any], *, name: str, fixed: Container[str] = ()) -> MotelogConfig:
    """Return the checked tree of ``table`` and the environment.

    Faults name the table ``name``. Variables in ``fixed`` have no effect: the caller sets those
    keys itself.
    """
    environment = {key: value for key, value in os.environ.items() if key not in fixed}
    return loader.load_table(
        MotelogConfig, table, environment, name=name, lines={}, check=_check_leaf
    ).section


def unread_variables() -> dict[str, str | None]:
    """Return the ``MOTELOG_`` variables that nothing reads, each with the likely intended name.

    They are not faults: container platforms set such variables for a service named motelog.
    """
    return loader.unread_variables(
        MotelogConfig, os.environ, prefix="MOTELOG_", known=OTHER_VARIABLES
    )


def client_files(config: MotelogConfig) -> tuple[str, str]:
    """Return (credentials, tls): the files for broker clients in this process, "" for none.

    They are the gateway's files, or else those with which the broker registers.
    """
    gateway, broker = config.gateway, config.broker
    if broker is None:
        return gateway.credentials_file, gateway.tls_file
    return (
        gateway.credentials_file or broker.credentials_file,
        gateway.tls_file or broker.tls_file,
    )


def check_listen(text: str) -> tuple[str, int]:
    """Return (host, port) of an address to listen on; ValueError if malformed or not loopback."""
    host, port = parse_address(text)
    if not is_loopback(host):
        raise ValueError(NOT_LOOPBACK.format(text=text))
    return host, port


def _check_leaf(path: KeyPath, value: Any) -> str | None:
    if path != ("gateway", "listen"):
        return None  # the others have TLS; their own sections check that
    try:
        check_listen(value)
    except ValueError as exc:
        return str(exc)
    return None
