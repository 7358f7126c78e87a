"""What the openssl command finds out about a TLS listener, as testssl does.

Owns: s_client, check_versions_and_ciphers. Must not touch: servers.
Not tried, as OpenSSL 3 has none of it any more: SSL 2 and 3, EXPORT ciphers, a client that
compresses. OCSP is not looked for: no listener staples.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.support.certificates import certificates

DEADLINE_S: Final = 20.0
#: Each server ends a connection for this: behind a page, for a frame that is too large, or as no
#: CONNECT has come in time.
ENDING: Final = "GET / HTTP/1.0\r\n\r\n"


def s_client(port: int, *arguments: str, ca: str = "", input: str = "") -> str:
    """Return what ``openssl s_client`` says of a connection."""
    done = subprocess.run(
        [
            "openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile",
            ca or certificates().ca, *arguments,
        ],
        input=input,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def check_versions_and_ciphers(port: int) -> None:
    """Fail unless a listener takes TLS 1.2 and 1.3 alone, and nothing weak with them."""
    for option, name in (("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")):
        said = s_client(port, option)
        assert name in said
        assert "Verify return code: 0 (ok)" in said
        assert "Compression: NONE" in said
        assert "OCSP response: no response sent" in s_client(port, option, "-status")
    # A session spares a device that comes back the signature, and the server too. With TLS 1.3 it
    # comes behind the handshake.
    for option, name in (("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")):
        with tempfile.TemporaryDirectory() as folder:
            session = str(Path(folder, "session"))
            said = s_client(port, option, "-ign_eof", "-sess_out", session, input=ENDING)
            assert f"New, {name}" in said
            assert "Max Early Data: 0" in said or option == "-tls1_2"
            assert f"Reused, {name}" in s_client(port, option, "-sess_in", session)
    for option in ("-tls1", "-tls1_1"):
        said = s_client(port, option, "-cipher", "ALL:@SECLEVEL=0")
        assert "Cipher is (NONE)" in said
    for weak in ("aNULL:@SECLEVEL=0", "eNULL:@SECLEVEL=0", "3DES:RC4:@SECLEVEL=0"):
        said = s_client(port, "-tls1_2", "-cipher", weak)
        assert "Cipher is (NONE)" in said or "no cipher match" in said
    assert "Secure Renegotiation IS supported" in s_client(port, "-tls1_2")
    renegotiated = s_client(port, "-tls1_2", input="R\n")
    assert "RENEGOTIATING" in renegotiated
    assert "no renegotiation" in renegotiated
