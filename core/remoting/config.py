"""Keys that broker and name server share for their remoting listener: TLS and access.

Owns: ListenKeys, which addresses are refused. Must not touch: sockets, the files that it names.
Spec: RocketMQ TlsMode, TlsSystemConfig.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from motelog.core.addresses import parse_address
from motelog.core.config import SectionFault
from motelog.core.net.config import TlsModeKeys, is_loopback

NEEDS: Final = (
    "{address} can be reached from other machines{and_plain}: anyone there could read and change"
    ' everything. Add to [{section}] {lines} (or insecure = "I know")'
)


class ListenKeys(TlsModeKeys, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys of a section with a remoting listener, besides ``listen``."""

    acl_file: str = ""
    """File of accounts in the format of RocketMQ's plain_acl.yml. With it, every request must be
    signed by one of them, and brokers register as an administrator. Empty: anyone may do
    everything. A change of the file takes effect within seconds; while it cannot be read, all
    requests are refused."""

    def listen_faults(self, section: str, address: str) -> Iterator[SectionFault]:
        """Yield faults of the keys, by themselves and for an address to listen on."""
        yield from self.tls_faults()
        try:
            host, _ = parse_address(address)
        except ValueError as exc:
            yield SectionFault(str(exc), ("listen",))
            return
        if is_loopback(host) or self.insecure:
            return
        lines = []
        if not self.tls_certificate:
            lines.append('tls_certificate = "PATH" and tls_key = "PATH"')
        elif not self.takes_tls_alone:
            lines.append('tls_mode = "enforcing"')
        if not (self.acl_file or self.needs_client_certificates):
            lines.append('acl_file = "PATH" or tls_client_ca = "PATH"')
        if lines:
            text = NEEDS.format(
                address=address,
                and_plain="" if self.tls_certificate else " and has no TLS",
                section=section,
                lines=", and ".join(lines),
            )
            yield SectionFault(text, ("listen",))
