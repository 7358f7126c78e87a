"""The ``[[listener]]`` tables: where else clients come in, and what their bytes go through.

Owns: ListenerConfig, the keys for TLS of all listeners, which addresses are reached from other
machines.
Must not touch: sockets, the files that it names, the protocol behind a listener.
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
#: What the system allows for the name of a Unix socket.
UNIX_PATH_BYTES_MAX: Final = 107
NEEDS_TLS: Final = (
    "{address} is reached from other machines and has no TLS, so whoever is in between reads and"
    ' changes everything: add tls_certificate = "PATH" and tls_key = "PATH"'
    ' (or insecure = "I know")'
)


class TlsKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every listener for clients may be told of TLS."""

    tls_certificate: str = ""
    """PEM file of the certificate and the chain above it. With it, the listener speaks TLS 1.2 and
    1.3. A change takes effect within seconds, for new connections."""

    tls_key: str = ""
    """PEM file of its key, not encrypted. Empty: it is in the same file."""

    tls_client_ca: str = ""
    """PEM file of the authorities for certificates of clients."""

    tls_client_certificates: Literal["required", "optional"] = "required"
    """Whether each client needs a certificate of ``tls_client_ca``. Whoever shows another one is
    refused in any case."""

    insecure: Literal["", "I know"] = ""
    """Lets an address that is reached from other machines do without TLS or logins."""

    @property
    def needs_client_certificates(self) -> bool:
        """Whether only clients with a certificate come in."""
        return bool(self.tls_client_ca) and self.tls_client_certificates == "required"

    def tls_faults(self) -> Iterator[SectionFault]:
        """Yield what is wrong with these keys among themselves."""
        if not self.tls_certificate:
            for key in ("tls_key", "tls_client_ca"):
                if getattr(self, key):
                    yield SectionFault(f"{key} needs tls_certificate", (key,))


Login = Literal["certificate", "jwt", "password", "scram", "http", "anonymous"]


class ListenerConfig(TlsKeys, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One ``[[listener]]``: a further address that clients connect to."""

    protocol: Literal["mqtt"] = msgspec.field(name="for", default="mqtt")
    """The protocol of its clients."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,32}$")]
    """Names it in logs and metrics."""

    address: str
    """HOST:PORT, where port 0 takes any free one; or unix:PATH."""

    advertise: str = ""
    """HOST:PORT that clients use, where it is not ``address``, as behind a balancer: what this
    server tells people, and `motelog doctor --config` tries."""

    websocket: str = ""
    """Path of the WebSocket, as in /mqtt; with TLS it is a secure one. Empty: none."""

    websocket_origins: tuple[str, ...] = ()
    """Web pages that may connect, as in https://dashboard.example. Empty: all; but to a loopback
    address without client certificates, those of this machine alone."""

    proxy_protocol: bool = False
    """Whether each connection begins with the PROXY protocol (version 1 or 2), from which the
    client's address is taken. The listener must be reached by the balancer alone."""

    logins: tuple[Login, ...] = ()
    """How clients may log in here, of what ``[access]`` has; any other login is refused. Empty: by
    all of them."""

    connections_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Connections at once; further ones wait. 0: the gateway's limit alone."""

    def __post_init__(self) -> None:
        refuse(self, self._faults())

    def _faults(self) -> Iterator[SectionFault]:
        fault = _address_fault(self.address)
        if fault is not None:
            yield SectionFault(fault, ("address",))
        elif self.is_reached_from_afar and not (self.tls_certificate or self.insecure):
            text = NEEDS_TLS.format(address=self.address)
            yield SectionFault(text, ("address", "tls_certificate", "insecure"))
        if self.advertise:
            if self.unix_path is not None:
                yield SectionFault("a Unix socket has no other address", ("advertise",))
            try:
                parse_address(self.advertise, port_min=1)
            except ValueError as exc:
                yield SectionFault(str(exc), ("advertise",))
        if "certificate" in self.logins and not self.tls_client_ca:
            text = "the login certificate needs tls_client_ca: nobody shows one without"
            yield SectionFault(text, ("logins", "tls_client_ca"))
        if self.websocket and not self.websocket.startswith("/"):
            yield SectionFault("the path of a WebSocket begins with /", ("websocket",))
        yield from self.tls_faults()

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
        """What clients call such an address."""
        if self.websocket:
            return "wss" if self.tls_certificate else "ws"
        return "mqtts" if self.tls_certificate else "mqtt"

    def text_of(self, address: str) -> str:
        """Return what clients are told of ``address``, where it listens; its port is settled."""
        return f"{self.scheme}://{self.advertise or address}{self.websocket}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may resolve to anything, and to something else tomorrow


def _address_fault(address: str) -> str | None:
    if address.startswith(UNIX):
        path = address.removeprefix(UNIX)
        if not path.startswith("/"):
            return f"{address} is not unix:PATH with an absolute path"
        if len(path.encode()) > UNIX_PATH_BYTES_MAX:
            return f"the path of a Unix socket has at most {UNIX_PATH_BYTES_MAX} bytes"
        if not Path(path).parent.is_dir():
            return f"{Path(path).parent} is no folder"
        return None
    try:
        parse_address(address)
    except ValueError as exc:
        return str(exc)
    return None
