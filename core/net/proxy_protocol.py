"""The PROXY protocol, as a codec: a balancer sends the client's address before its bytes.

Owns: ProxyCodec. Must not touch: sockets, which peers to trust: only balancers use the listener.
Spec: HAProxy's proxy-protocol.txt, versions 1 and 2.

    v1   "PROXY TCP4 192.0.2.1 198.51.100.1 51515 1883\\r\\n"     at most 107 bytes
    v2   0            12        13       14      16
         +------------+---------+--------+-------+-----------------------+
         | signature  | version | family | bytes | addresses, then TLVs  |   big-endian
         |            | command |        |       | (skipped)             |
         +------------+---------+--------+-------+-----------------------+
"""

from __future__ import annotations

import ipaddress
from typing import Final

from motelog.core.net.codec import Certificate, Decoded, Stream

V1_BYTES_MAX: Final = 107
#: Addresses take up to 216 bytes; balancers add the requested name and a certificate's names.
V2_BODY_BYTES_MAX: Final = 4096
SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_V1: Final = b"PROXY "
_HEAD_BYTES: Final = 16
_LOCAL, _PROXIED = 0x20, 0x21
_TCP4, _TCP6 = 0x11, 0x21


class _MalformedError(Exception):
    pass


class ProxyCodec:
    """Reads the header, then passes on all bytes unchanged."""

    __slots__ = ("_header", "_is_over", "_is_read", "peer")

    identity: Certificate | None = None

    def __init__(self) -> None:
        self.peer: tuple[str, int] | None = None
        self._header = b""
        self._is_read = False
        self._is_over = False

    @property
    def fault(self) -> str:
        return "it does not begin with a header of the PROXY protocol" if self._is_over else ""

    def receive(self, data: bytes) -> Decoded:
        if self._is_read:
            return Decoded(data, b"", Stream.PLAIN)
        if self._is_over:
            return Decoded(b"")
        self._header += data
        try:
            size = self._read()
        except _MalformedError:
            self._is_over = True
            self._header = b""
            return Decoded(b"", b"", Stream.FAULTY)
        if not size:
            return Decoded(b"")
        self._is_read = True
        rest, self._header = self._header[size:], b""
        return Decoded(rest, b"", Stream.PLAIN)

    def send(self, data: bytes) -> bytes:
        return data if self._is_read else b""

    def close(self) -> bytes:
        return b""

    def _read(self) -> int:
        """Return the size of the whole header, 0 if it is incomplete."""
        header = self._header
        if header.startswith(SIGNATURE[: len(header)]):
            return self._read_v2(header)
        if header.startswith(_V1[: len(header)]):
            return self._read_v1(header)
        raise _MalformedError

    def _read_v1(self, header: bytes) -> int:
        line, end, _ = header[:V1_BYTES_MAX].partition(b"\r\n")
        if not end:
            if len(header) >= V1_BYTES_MAX:
                raise _MalformedError
            return 0
        words = line.split(b" ")
        if words[1] in (b"TCP4", b"TCP6") and len(words) == 6:
            try:
                address = ipaddress.ip_address(words[2].decode("ascii"))
                if not words[4].isdigit() or len(words[4]) > 5 or int(words[4]) > 65_535:
                    raise _MalformedError
            except ValueError:
                raise _MalformedError from None
            if address.version != int(words[1][3:4]) or "%" in str(address):
                raise _MalformedError
            self.peer = (str(address), int(words[4]))
        elif words[1] != b"UNKNOWN":
            raise _MalformedError
        return len(line) + 2

    def _read_v2(self, header: bytes) -> int:
        if len(header) < _HEAD_BYTES:
            return 0
        command, family = header[12], header[13]
        size = int.from_bytes(header[14:_HEAD_BYTES], "big")
        if size > V2_BODY_BYTES_MAX or command not in (_LOCAL, _PROXIED):
            raise _MalformedError
        if len(header) < _HEAD_BYTES + size:
            return 0
        if command == _PROXIED and family in (_TCP4, _TCP6):
            width = 4 if family == _TCP4 else 16
            if size < 2 * width + 4:
                raise _MalformedError
            address = header[_HEAD_BYTES : _HEAD_BYTES + width]
            port_at = _HEAD_BYTES + 2 * width
            port = int.from_bytes(header[port_at : port_at + 2], "big")
            self.peer = (str(ipaddress.ip_address(address)), port)
        return _HEAD_BYTES + size
