"""TLS as a codec: records in parts or together, the end, chains of authorities, resumption."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from motelog.core.errors import CertificateError
from motelog.core.net.codec import Decoded, Stream
from motelog.core.net.tls import RECORD_BYTES, TlsCodec, TlsContexts
from tests.support.certificates import (
    CLIENT_NAME,
    Certificates,
    Chain,
    certificates,
    make_certificates,
    make_chain,
    make_crl,
)
from tests.support.coded_peers import TlsClient

DAY_S = 86_400
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


def opened() -> tuple[TlsCodec, TlsClient]:
    files = certificates()
    codec, client = TlsCodec(TlsContexts(files.server, files.server_key).current()), TlsClient()
    to_server = client.begin()
    while to_server or not client.is_open:
        answer = codec.receive(to_server).answer
        _, to_server = client.decode(answer)
    return codec, client


@pytest.mark.parametrize("left_bytes", [1, 16, 17, 400, RECORD_BYTES - 1, RECORD_BYTES])
def test_record_is_handed_over_when_it_is_whole_with_all_behind_it(left_bytes: int) -> None:
    codec, client = opened()
    large = client.encode(bytes(range(256)) * (RECORD_BYTES // 256))
    assert codec.receive(large[:-left_bytes]).data == b""
    small = client.encode(b"a") + client.encode(b"b" * 300)
    decoded = codec.receive(large[-left_bytes:] + small)
    assert decoded.data == bytes(range(256)) * (RECORD_BYTES // 256) + b"a" + b"b" * 300
    assert decoded.stream is Stream.OPEN
    assert codec.receive(client.encode(b"more")).data == b"more"


def test_end_of_the_peer_ends_the_stream_behind_what_came_with_it() -> None:
    codec, client = opened()
    last = client.encode(b"last")
    assert codec.receive(last + client.end()) == (b"last", b"", Stream.ENDED)
    assert codec.receive(last) == Decoded(b"")


def test_broken_record_is_a_fault_behind_what_came_before_it() -> None:
    codec, client = opened()
    broken = bytearray(client.encode(b"before") + client.encode(b"broken"))
    broken[-1] ^= 1
    decoded = codec.receive(bytes(broken))
    assert (decoded.data, decoded.stream) == (b"before", Stream.FAULTY)
    assert codec.fault.startswith("TLS failed: ")
    assert codec.send(b"x") == codec.close() == b""


# --- who comes in, and what a refused one is called


def asking(files: Certificates, **keys: str) -> TlsContexts:
    """Return what a server offers that asks for certificates, those of ``files`` unless told."""
    named = {"certificate": files.server, "key": files.server_key, "client_ca": files.ca, **keys}
    return TlsContexts(**named)  # type: ignore[arg-type]  # texts all of them


def meet(
    contexts: TlsContexts,
    context: ssl.SSLContext,
    session: ssl.SSLSession | None = None,
    *,
    now_s: Callable[[], float] = time.time,
) -> tuple[TlsCodec, TlsClient]:
    """Have a client and a server exchange all there is to say; either may end it."""
    codec = TlsCodec(contexts.current(), now_s=now_s)
    client = TlsClient(context=context, session=session)
    to_server = client.begin()
    while to_server:
        answer = codec.receive(to_server).answer
        try:
            to_server = client.decode(answer)[1]
        except ssl.SSLError:
            break
    return codec, client


def showing(
    files: Certificates, certificate: str = "", *, version: ssl.TLSVersion = VERSIONS[1]
) -> ssl.SSLContext:
    """Return a client's context that knows the authority of ``files`` alone."""
    context = ssl.create_default_context(cafile=files.ca)
    context.maximum_version = version
    if certificate:
        context.load_cert_chain(certificate, files.client_key)
    return context


@pytest.mark.parametrize("version", VERSIONS)
def test_revoked_certificate_is_refused_once_the_list_has_it(
    version: ssl.TLSVersion, tmp_path: Path
) -> None:
    files = make_certificates(tmp_path)
    now_s = 0.0
    server = TlsContexts(
        files.server,
        files.server_key,
        client_ca=files.ca,
        client_crl=make_crl(tmp_path),
        monotonic_s=lambda: now_s,
    )
    context = showing(files, files.client, version=version)
    codec, first = meet(server, context)
    assert name_shown(codec) == CLIENT_NAME
    make_crl(tmp_path, files.client)
    now_s = 2.0
    for session in (None, first.session):
        codec, _ = meet(server, context, session)
        assert codec.identity is None
        assert codec.fault == "the client's certificate is not accepted: certificate revoked"


def test_list_of_another_authority_or_one_that_is_over_lets_nobody_in(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    (tmp_path / "aside").mkdir()
    make_certificates(tmp_path / "aside")
    lists = {
        "CRL signature failure": make_crl(tmp_path / "aside"),
        "CRL has expired": make_crl(tmp_path, valid_days=-1),
    }
    for why, path in lists.items():
        codec, _ = meet(asking(files, client_crl=path), showing(files, files.client))
        assert codec.fault == f"the client's certificate is not accepted: {why}"


def test_authority_in_the_list_of_revoked_certificates_is_refused(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    both = tmp_path / "both.pem"
    aside = tmp_path / "aside"
    aside.mkdir()
    other = make_certificates(aside)
    both.write_text(Path(make_crl(tmp_path)).read_text() + Path(other.ca).read_text())
    for path in (str(both), other.ca, files.ca, str(tmp_path / "none"), files.server_key):
        with pytest.raises(CertificateError, match=f"cannot use {path}: "):
            asking(files, client_crl=path)


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return make_chain(tmp_path)


def name_shown(codec: TlsCodec) -> str | None:
    return None if codec.identity is None else codec.identity.name


def test_chains_of_both_sides_lead_to_a_root_that_is_all_they_know(chain: Chain) -> None:
    server = asking(chain, certificate=chain.joined(chain.server, chain.issuer))
    codec, client = meet(server, showing(chain, chain.joined(chain.client, chain.issuer)))
    assert client.is_open
    assert name_shown(codec) == CLIENT_NAME
    assert codec.fault == ""


def test_client_without_the_authority_in_between_is_refused_unless_the_server_knows_it(
    chain: Chain,
) -> None:
    certificate = chain.joined(chain.server, chain.issuer)
    codec, _ = meet(asking(chain, certificate=certificate), showing(chain, chain.client))
    assert codec.identity is None
    why = "the client's certificate is not accepted: unable to get local issuer certificate"
    assert codec.fault == why
    both = chain.joined(chain.ca, chain.issuer)
    server = asking(chain, certificate=certificate, client_ca=both)
    assert name_shown(meet(server, showing(chain, chain.client))[0]) == CLIENT_NAME


def test_authority_in_between_may_be_the_only_one_that_clients_get_in_by(chain: Chain) -> None:
    certificate = chain.joined(chain.server, chain.issuer)
    server = asking(chain, certificate=certificate, client_ca=chain.issuer)
    assert name_shown(meet(server, showing(chain, chain.client))[0]) == CLIENT_NAME
    by_the_root = showing(chain)
    by_the_root.load_cert_chain(chain.direct)
    assert name_shown(meet(server, by_the_root)[0]) is None
    assert name_shown(meet(asking(chain, certificate=certificate), by_the_root)[0]) == "direct"


def test_fault_says_whose_it_is(tmp_path: Path) -> None:
    files, other = certificates(), make_certificates(tmp_path)
    faults = []
    for context in (showing(files), showing(other, other.client)):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        faults.append(meet(asking(files), context)[0].fault)
    assert faults == [
        "the TLS handshake failed: peer did not return a certificate",
        "the client's certificate is not accepted: self-signed certificate in certificate chain",
    ]
    old = TlsCodec(asking(files).current())
    assert old.receive(b"GET / HTTP/1.1\r\n\r\n").stream is Stream.FAULTY
    assert old.fault == "the client does not speak TLS: http request"


@pytest.mark.parametrize("alert", [42, 45, 46, 48])
def test_client_that_does_not_accept_the_server_is_called_so(alert: int) -> None:
    codec = TlsCodec(asking(certificates()).current())
    client = TlsClient()
    codec.receive(client.begin())
    codec.receive(b"\x15\x03\x03\x00\x02\x02" + bytes((alert,)))
    assert codec.fault.startswith("the client does not accept the server's certificate: ")


# --- resumption


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("has_tickets", [True, False])
def test_resumed_session_keeps_the_name_of_its_certificate(
    version: ssl.TLSVersion, has_tickets: bool
) -> None:
    files = certificates()
    server, context = asking(files), showing(files, files.client, version=version)
    if not has_tickets:
        context.options |= ssl.OP_NO_TICKET
    _, first = meet(server, context)
    assert not first.is_resumed
    codec, again = meet(server, context, first.session)
    # Without tickets the server keeps sessions of TLS 1.2; those of 1.3 are tickets in any case.
    assert again.is_resumed
    assert name_shown(codec) == CLIENT_NAME


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_resumed_once_a_file_has_changed(
    version: ssl.TLSVersion, tmp_path: Path
) -> None:
    files = make_certificates(tmp_path)
    now_s = 0.0
    server = TlsContexts(
        files.server, files.server_key, client_ca=files.ca, monotonic_s=lambda: now_s
    )
    context = showing(files, files.client, version=version)
    _, first = meet(server, context)
    assert meet(server, context, first.session)[1].is_resumed
    # Another authority of clients: who was trusted before is a stranger, resumed or not.
    (tmp_path / "aside").mkdir()
    other = make_certificates(tmp_path / "aside")
    os.replace(other.ca, files.ca)
    now_s = 2.0
    codec, again = meet(server, context, first.session)
    assert not again.is_resumed
    assert codec.identity is None
    assert codec.fault.startswith("the client's certificate is not accepted: ")


@pytest.mark.parametrize("version", VERSIONS)
def test_session_of_a_certificate_that_has_expired_meanwhile_is_not_resumed(
    version: ssl.TLSVersion,
) -> None:
    files = certificates()
    server, context = asking(files), showing(files, files.client, version=version)
    _, first = meet(server, context)
    codec, again = meet(server, context, first.session, now_s=lambda: time.time() + DAY_S)
    assert name_shown(codec) == CLIENT_NAME
    codec, _ = meet(server, context, again.session, now_s=lambda: time.time() + 3 * DAY_S)
    assert codec.identity is None
    assert codec.send(b"x") == b""
    assert codec.fault.endswith("the session's certificate has expired")
