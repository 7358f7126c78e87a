"""What a client is told of TLS: its file, and what it does with what is wrong there."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from motelog.core.errors import ConfigError
from motelog.core.remoting.tls import Tls, read_tls
from tests.support.certificates import certificates


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "tls.properties"
    path.write_text("\n".join(lines))
    return path


def test_file_of_authorities_is_all_that_most_need() -> None:
    ca = certificates().ca
    assert read_tls(ca) == Tls(ca=ca)
    context = read_tls(ca).context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_properties_are_those_of_rocketmq(tmp_path: Path) -> None:
    files = certificates()
    path = written(
        tmp_path,
        "# clients",
        f"tls.client.trustCertPath = {files.ca}",
        f"tls.client.certPath={files.client}",
        f"tls.client.keyPath={files.client_key}",
        "tls.client.keyPassword=",
        "tls.client.authServer=true",
        "tls.client.checkName=false",
        "tls.server.certPath=/of/a/server.pem",
        "tls.test.mode.enable=false",
    )
    tls = read_tls(path)
    assert tls == Tls(ca=files.ca, certificate=files.client, key=files.client_key, check_name=False)
    assert not tls.context().check_hostname
    context = read_tls(written(tmp_path, "tls.client.authServer=FALSE")).context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("tls.client.trustCertFile=/ca.pem", "is not valid; tls.client.* is one of trustCertPath"),
        ("tls.client.authServer=maybe", "is not valid"),
        ("tls.client.keyPassword=planted", "keys must not be encrypted here"),
        ("tls.client.trustCertPath=/nowhere/ca.pem", "/nowhere/ca.pem: cannot be used: No such"),
        ("tls.client.certPath=/nowhere/a.pem", "/nowhere/a.pem: cannot be used: No such file"),
        ("tls.server.certPath=/of/a/server.pem", "neither PEM certificates nor lines"),
        ("", "neither PEM certificates nor lines"),
    ],
)
def test_file_that_cannot_be_meant_is_refused(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_tls(written(tmp_path, line))
    assert why in str(refused.value)
    assert "planted" not in str(refused.value)


def test_what_is_no_certificate_or_no_file_is_refused(tmp_path: Path) -> None:
    broken = written(tmp_path, "-----BEGIN CERTIFICATE-----", "x", "-----END CERTIFICATE-----")
    with pytest.raises(ConfigError, match="cannot be used"):
        read_tls(broken)
    with pytest.raises(ConfigError, match="cannot read: No such file"):
        read_tls(tmp_path / "nowhere")
    key = certificates().client_key
    with pytest.raises(ConfigError, match="cannot be used"):
        Tls(certificate=key, key=key).context()
