"""The ``[[listener]]`` tables: further addresses for clients, with TLS, WebSocket, PROXY.

Owns: ListenerConfig, the TLS keys of all listeners, which addresses other machines can reach.
Must not touch: sockets, the files that it names, the protocol behind a listener, who may log in.
Invariants: a role opens only listeners that are a ListenerConfig; ``listen`` in its section is the
short form of one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from motelog.core.addresses import parse_address
from motelog.core.config import SectionFault, refuse

UNIX: Final = "unix:"
#: The system's limit for the path of a Unix socket.
UNIX_PATH_BYTES_MAX: Final = 107
NEEDS_TLS: Final = (
    "{address} can be reached from other machines and has no TLS, so anyone in between could read"
    ' and change everything: add tls_certificate = "PATH" and tls_key = "PATH"'
    ' (or insecure = "I know")'
)
NEEDS_ENFORCING: Final = (
    "{address} can be reached from other machines and permissive allows clients without TLS, so"
    ' anyone in between could read and change everything: set tls_mode = "enforcing"'
    ' (or insecure = "I know")'
)
PERMISSIVE_ASKS_NOBODY: Final = (
    "permissive allows clients without TLS, and so without the certificate that tls_client_ca"
    ' requires: set tls_mode = "enforcing", or tls_client_certificates = "optional"'
)


class TlsKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """TLS keys of every listener for clients."""

    tls_certificate: str = ""
    """PEM file of the certificate and its chain. With it, the listener uses TLS 1.2 and 1.3. A
    change takes effect within seconds, for new connections."""

    tls_key: str = ""
    """PEM file of the certificate's key, not encrypted. Empty: it is in the same file."""

    tls_client_ca: str = ""
    """PEM file of the authorities for client certificates."""

    tls_client_certificates: Literal["required", "optional"] = "required"
    """Whether each client needs a certificate of ``tls_client_ca``. A client with any other is
    refused."""

    tls_client_crl: str = ""
    """PEM file with the revocation list (CRL) of each of these authorities that issues client
    certificates. Revoked certificates are refused; so are all of an authority whose list is missing
    or expired. A change takes effect within seconds, for new connections."""

    insecure: Literal["", "I know"] = ""
    """Allows an address that other machines reach to have no TLS or logins."""

    @property
    def needs_client_certificates(self) -> bool:
        """Whether only clients with a certificate are accepted."""
        return bool(self.tls_client_ca) and self.tls_client_certificates == "required"

    def tls_faults(self) -> Iterator[SectionFault]:
        """Yield faults in the combination of these keys."""
        if not self.tls_certificate:
            for key in ("tls_key", "tls_client_ca"):
                if getattr(self, key):
                    yield SectionFault(f"{key} needs tls_certificate", (key,))
        if self.tls_client_crl and not self.tls_client_ca:
            yield SectionFault("tls_client_crl needs tls_client_ca", ("tls_client_crl",))


class TlsModeKeys(TlsKeys, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """TLS keys of a listener that may also accept clients without TLS."""

    tls_mode: Literal["enforcing", "permissive"] = "enforcing"
    """For broker and name server: whether clients without TLS are refused (RocketMQ's enforcing) or
    served on the same port (permissive: recognised by the first byte). Without ``tls_certificate``
    there is no TLS (disabled)."""

    @property
    def takes_tls_alone(self) -> bool:
        """Whether clients without TLS are refused."""
        return bool(self.tls_certificate) and self.tls_mode == "enforcing"

    def tls_faults(self) -> Iterator[SectionFault]:
        """Yield faults in the combination of these keys."""
        yield from super().tls_faults()
        if self.needs_client_certificates and self.tls_mode == "permissive":
            yield SectionFault(PERMISSIVE_ASKS_NOBODY, ("tls_mode",))


Protocol = Literal["mqtt", "broker", "namesrv", "admin"]
Login = Literal["certificate", "jwt", "password", "scram", "http", "anonymous"]


#: Keys that are only for MQTT.
MQTT_KEYS: Final = ("websocket", "websocket_origins", "logins")
SCHEMES: Final[dict[Protocol, tuple[str, str]]] = {
    "mqtt": ("mqtt", "mqtts"),
    "broker": ("tcp", "tls"),
    "namesrv": ("tcp", "tls"),
    "admin": ("http", "https"),
}


class ListenerConfig(TlsModeKeys, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One ``[[listener]]``: a further address that clients connect to."""

    protocol: Protocol = msgspec.field(name="for", default="mqtt")
    """Which clients it is for: MQTT clients, those of the broker or the name server, or browsers
    and tools that use the console (admin)."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,32}$")]
    """Name of the listener in logs and metrics."""

    address: str
    """HOST:PORT, where port 0 takes any free port; or unix:PATH."""

    advertise: str = ""
    """HOST:PORT that clients use, if it is not ``address``, for example behind a balancer. This
    server shows it to people, and `motelog doctor --config` checks it. Name servers give clients
    only ``broker.advertise``."""

    websocket: str = ""
    """Path of the WebSocket, such as /mqtt; with TLS it is a secure one. Empty: no WebSocket."""

    websocket_origins: tuple[str, ...] = ()
    """Origins of web pages that may connect, such as https://dashboard.example. Empty: all; but to
    a loopback address without client certificates, only those of this machine."""

    proxy_protocol: bool = False
    """Whether each connection begins with the PROXY protocol (version 1 or 2), from which the
    client's address is taken. Only the balancer must be able to reach the listener."""

    logins: tuple[Login, ...] = ()
    """Which logins of ``[access]`` clients may use here; any other login is refused. Empty: all of
    them."""

    connections_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Most connections at a time; further ones wait, and at the console replace an idle one. 0:
    only the limit of the role's section, which counts connections of all its listeners."""

    def __post_init__(self) -> None:
        refuse(self, self._faults())

    def _faults(self) -> Iterator[SectionFault]:
        fault = _address_fault(self.address)
        if fault is not None:
            yield SectionFault(fault, ("address",))
        elif self.is_reached_from_afar and not (self.takes_tls_alone or self.insecure):
            text = NEEDS_ENFORCING if self.tls_certificate else NEEDS_TLS
            keys = (
                "address",
                "tls_mode" if self.tls_certificate else "tls_certificate",
                "insecure",
            )
            yield SectionFault(text.format(address=self.address), keys)
        if self.advertise:
            if self.unix_path is not None:
                yield SectionFault("a Unix socket cannot have advertise", ("advertise",))
            try:
                parse_address(self.advertise, port_min=1)
            except ValueError as exc:
                yield SectionFault(str(exc), ("advertise",))
        if "certificate" in self.logins and not self.tls_client_ca:
            text = "the login certificate needs tls_client_ca: clients send none without it"
            yield SectionFault(text, ("logins", "tls_client_ca"))
        if self.websocket and not self.websocket.startswith("/"):
            yield SectionFault("the path of a WebSocket must begin with /", ("websocket",))
        yield from self.tls_faults()
        yield from self._foreign_keys()

    def _foreign_keys(self) -> Iterator[SectionFault]:
        """Yield a fault for each key that is not for this listener's protocol."""
        if self.protocol != "mqtt":
            for key in MQTT_KEYS:
                if getattr(self, key):
                    yield SectionFault(f'{key} is for listeners of "mqtt"', ("for", key))
            if self.unix_path is not None:
                yield SectionFault('a Unix socket is for listeners of "mqtt"', ("for", "address"))
        if self.protocol not in ("broker", "namesrv") and self.tls_mode == "permissive":
            text = 'permissive is for listeners of "broker" and "namesrv"'
            yield SectionFault(text, ("for", "tls_mode"))

    @property
    def unix_path(self) -> str | None:
        """The file of a Unix socket."""
        return self.address.removeprefix(UNIX) if self.address.startswith(UNIX) else None

    @property
    def is_reached_from_afar(self) -> bool:
        """Whether other machines may reach it."""
        if _address_fault(self.address) is not None or self.unix_path is not None:
            return False
        return not is_loopback(parse_address(self.address)[0])

    @property
    def scheme(self) -> str:
        """The URL scheme of its address."""
        plain, secure = ("ws", "wss") if self.websocket else SCHEMES[self.protocol]
        return secure if self.tls_certificate else plain

    def text_of(self, address: str) -> str:
        """Return the URL for clients; ``address`` is where it listens, with the actual port."""
        return f"{self.scheme}://{self.advertise or address}{self.websocket}"


def first_listener(protocol: Protocol, address: str, keys: TlsKeys) -> ListenerConfig:
    """Return the listener of a section: its ``listen`` and TLS keys."""
    names = [name for name in TlsModeKeys.__struct_fields__ if hasattr(keys, name)]
    told = {name: getattr(keys, name) for name in names}
    return ListenerConfig(name=protocol, protocol=protocol, address=address, **told)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may resolve to anything, and differently tomorrow


def _address_fault(address: str) -> str | None:
    if address.startswith(UNIX):
        path = address.removeprefix(UNIX)
        if not path.startswith("/"):
            return f"{address} is not unix:PATH with an absolute path"
        if len(path.encode()) > UNIX_PATH_BYTES_MAX:
            return f"the path of a Unix socket must have at most {UNIX_PATH_BYTES_MAX} bytes"
        if not Path(path).parent.is_dir():
            return f"{Path(path).parent} is not a folder"
        return None
    try:
        parse_address(address)
    except ValueError as exc:
        return str(exc)
    return None
