"""What ``motelog doctor --config`` says of certificates: dates, chains, who must be known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import AuthorityInformationAccessOID, NameOID

from motelog.cli.certificates import certificate_findings
from motelog.cli.finding import Finding
from motelog.config import load_config
from tests.support.certificates import Certificates, Chain, certificates, make_chain

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return make_chain(tmp_path)


def found(files: Certificates, certificate: str, client_ca: str = "") -> Finding:
    """Return what is said of a listener's certificate, whose key is that of the files."""
    config = files.folder / "motelog.toml"
    config.write_text(
        f'[broker.store]\ndirectory = "{files.folder}"\n[[listener]]\nname = "tls"\n'
        'address = "127.0.0.1:0"\n'
        f'tls_certificate = "{certificate}"\ntls_key = "{files.server_key}"\n'
        f'tls_client_ca = "{client_ca}"\n'
    )
    (one,) = certificate_findings(load_config(config))
    return one


def issued(
    files: Certificates, *, begins: datetime, ends: datetime, by: str, names_issuer: bool = False
) -> str:
    """Make a certificate for the server's key with these dates."""
    key = _key_of(files.folder / "server.key")
    issuer = x509.load_pem_x509_certificate((files.folder / f"{by}.pem").read_bytes())
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(begins)
        .not_valid_after(ends)
    )
    if names_issuer:
        at = x509.UniformResourceIdentifier("http://r11.example/")
        access = x509.AccessDescription(AuthorityInformationAccessOID.CA_ISSUERS, at)
        builder = builder.add_extension(x509.AuthorityInformationAccess([access]), critical=False)
    signed = builder.sign(_key_of(files.folder / f"{by}.key"), hashes.SHA256())
    path = files.folder / "issued.pem"
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return str(path)


def _key_of(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def test_whole_chain_is_for_clients_that_know_the_root(chain: Chain) -> None:
    whole = chain.joined(chain.server, chain.issuer)
    with_root = chain.joined(chain.server, chain.issuer, chain.ca)
    for certificate in (whole, with_root):
        one = found(chain, certificate, chain.ca)
        assert one.level == "note"  # the tests' certificates hold for two days
        assert f"{certificate} expires at " in one.text


def test_authority_that_clients_must_know_is_told_as_the_server_sends_it(chain: Chain) -> None:
    """Behind a certificate alone it sends those above it that certificates of clients come from."""
    own = issued(chain, begins=NOW - DAY, ends=NOW + 90 * DAY, by="issuer")
    for client_ca, known in (
        ("", "Test issuer"),
        (chain.issuer, "Test CA"),
        (chain.joined(chain.ca, chain.issuer), "Test CA"),
    ):
        one = found(chain, own, client_ca)
        assert one.level == "ok"
        assert one.text.endswith(f" UTC, for clients that trust {known!r}")


def test_chain_in_another_order_is_a_fault(chain: Chain) -> None:
    one = found(chain, chain.joined(chain.server, chain.ca, chain.issuer))
    assert (one.level, one.name) == ("fault", "TLS of listener tls")
    assert one.text.endswith("'localhost' is followed by 'Test CA', which did not issue it")


def test_certificate_by_a_root_has_nothing_in_between() -> None:
    files = certificates()
    assert found(files, files.server, files.ca).level == "note"
    assert "expires at " in found(files, files.server).text


def test_public_authority_in_between_is_missed(chain: Chain) -> None:
    alone = issued(chain, begins=NOW - DAY, ends=NOW + 90 * DAY, by="issuer", names_issuer=True)
    one = found(chain, alone)
    assert (one.level, one.text) == (
        "note",
        f"{alone} works only for clients that trust 'Test issuer'",
    )
    assert one.remedy is not None
    assert one.remedy.startswith(f"append the certificate of 'Test issuer' to {alone}: ")


def test_dates_of_a_certificate_are_looked_at(chain: Chain) -> None:
    past = found(chain, issued(chain, begins=NOW - 9 * DAY, ends=NOW - DAY, by="issuer"))
    assert past.level == "fault"
    assert " expired at " in past.text
    future = found(chain, issued(chain, begins=NOW + DAY, ends=NOW + 9 * DAY, by="issuer"))
    assert future.level == "fault"
    assert "is not valid before " in future.text
