"""Tokens: what one must say, and hostile ones."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from motelog.core.clock import ManualClock
from motelog.core.config import SectionFaultsError
from motelog.gateway.access.config import AccessConfig
from motelog.gateway.access.login import Credentials, Denied, Identity
from motelog.gateway.access.password_file import AccessFileError
from motelog.gateway.access.tokens import LEEWAY_S, TOKEN_BYTES_MAX, Tokens

NOW_S = 1_800_000_000
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
PUBLIC = RSA.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
CLAIMS: dict[str, Any] = {"sub": "alice", "aud": "motelog", "exp": NOW_S + 60}


def jwk(key: Any, name: str, **more: str) -> dict[str, Any]:
    kind = (
        jwt.algorithms.ECAlgorithm
        if isinstance(key, ec.EllipticCurvePrivateKey)
        else (jwt.algorithms.RSAAlgorithm)
    )
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": name, **more}


def tokens_of(folder: Path, keys: list[dict[str, Any]] | None = None, **what: Any) -> Tokens:
    if keys is None:
        keys = [jwk(RSA, "one", alg="RS256"), jwk(EC, "two", alg="ES256", use="sig")]
    path = folder / "keys.json"
    path.write_text(json.dumps({"keys": keys}))
    what.setdefault("jwt_audience", "motelog")
    config = AccessConfig(jwt_keys_file=str(path), **what)
    tokens = Tokens(config, clock=ManualClock(NOW_S * 1000))
    keys_read = tokens.read()
    assert keys_read is not None
    tokens.use(keys_read)
    return tokens


def token(
    claims: dict[str, Any] | None = None,
    *,
    key: Any = RSA,
    algorithm: str = "RS256",
    **headers: Any,
) -> bytes:
    headers.setdefault("kid", "one" if algorithm == "RS256" else "two")
    return jwt.encode(claims or CLAIMS, key, algorithm=algorithm, headers=headers).encode()


def part(value: Any) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def raw(header: Any, claims: Any, sign: Callable[[bytes], bytes] = lambda _: b"") -> bytes:
    """Return a token that no library would make."""
    signed = part(header) + b"." + part(claims)
    return signed + b"." + part(sign(signed))


def by_rsa(data: bytes) -> bytes:
    return jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256).sign(data, RSA)


def by_public_key(data: bytes) -> bytes:
    return hmac.digest(PUBLIC, data, hashlib.sha256)


ONE = {"alg": "RS256", "kid": "one"}
GOOD = token()
HOSTILE: dict[str, bytes] = {
    "no algorithm": raw({"alg": "none", "kid": "one"}, CLAIMS),
    "no algorithm, in capitals": raw({"alg": "NONE", "kid": "one"}, CLAIMS),
    "public key as a shared secret": raw({"alg": "HS256", "kid": "one"}, CLAIMS, by_public_key),
    "algorithm of another key": raw({"alg": "ES256", "kid": "one"}, CLAIMS, by_rsa),
    "another algorithm of the key": token(algorithm="RS512", kid="one"),
    "another key": token(key=OTHER),
    "unknown key": token(kid="three"),
    "key by path": token(kid="../../etc/passwd"),
    "key name that is no text": raw({"alg": "RS256", "kid": ["one"]}, CLAIMS, by_rsa),
    "several keys and no name": raw({"alg": "RS256"}, CLAIMS, by_rsa),
    "key in the header": token(key=OTHER, kid="x", jwk=jwk(OTHER, "x")),
    "key at an address": token(key=OTHER, kid="x", jku="http://127.0.0.1/keys"),
    "unknown extension": raw({**ONE, "crit": ["b64"], "b64": True}, CLAIMS, by_rsa),
    "no signature": GOOD.rpartition(b".")[0] + b".",
    "signature of another token": raw(ONE, {**CLAIMS, "sub": "bob"}, lambda _: by_rsa(b"x")),
    "cut signature": GOOD[:-8],
    "no exp": token({"sub": "alice", "aud": "motelog"}),
    "expired": token({**CLAIMS, "exp": NOW_S - LEEWAY_S}),
    "exp is a text": token({**CLAIMS, "exp": str(NOW_S + 60)}),
    "exp is infinite": raw(ONE, {**CLAIMS, "exp": math.inf}, by_rsa),
    "exp is not a number": raw(ONE, {**CLAIMS, "exp": math.nan}, by_rsa),
    "exp is huge": raw(ONE, {**CLAIMS, "exp": 10**400}, by_rsa),
    "exp is true": token({**CLAIMS, "exp": True}),
    "exp is null": raw(ONE, {**CLAIMS, "exp": None}, by_rsa),
    "not yet valid": token({**CLAIMS, "nbf": NOW_S + LEEWAY_S + 1}),
    "nbf is a text": raw(ONE, {**CLAIMS, "nbf": "now"}, by_rsa),
    "no aud": token({"sub": "alice", "exp": NOW_S + 60}),
    "another aud": token({**CLAIMS, "aud": "motelog2"}),
    "aud is a number": raw(ONE, {**CLAIMS, "aud": 7}, by_rsa),
    "no sub": token({"aud": "motelog", "exp": NOW_S + 60}),
    "sub is a number": raw(ONE, {**CLAIMS, "sub": 7}, by_rsa),
    "sub is empty": token({**CLAIMS, "sub": ""}),
    "sub with a control character": token({**CLAIMS, "sub": "alice\n"}),
    "claims that are no object": raw(ONE, ["alice"], by_rsa),
    "claims that are no JSON": raw(ONE, b"{", by_rsa),
    "nested claims": raw(ONE, b"[" * 5000, by_rsa),
    "nested header": raw(b'{"a":' + b"[" * 5000, CLAIMS),
    "header that is no object": raw(b'{"alg": [1]}', CLAIMS),
    "too long": token({**CLAIMS, "x": "x" * TOKEN_BYTES_MAX}),
}


def ask(tokens: Tokens, password: bytes, client_id: str = "c") -> Identity | Denied | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a library about its own weak input
        return tokens.log_in(Credentials(client_id, "whoever", password))


@pytest.mark.parametrize(
    "password",
    [
        GOOD,
        token(key=EC, algorithm="ES256"),
        token({**CLAIMS, "aud": ["other", "motelog"]}),
        token({**CLAIMS, "exp": NOW_S - LEEWAY_S + 1}),
        token({**CLAIMS, "nbf": NOW_S, "iat": NOW_S + 5, "iss": "anybody"}),
    ],
    # The keys are new in each process, and so are the tokens.
    ids=["plain", "other algorithm", "several audiences", "just over", "more claims"],
)
def test_token_names_the_user(tmp_path: Path, password: bytes) -> None:
    found = ask(tokens_of(tmp_path), password)
    assert isinstance(found, Identity)
    assert (found.user_name, found.authenticator) == ("alice", "jwt")
    assert found.expires_s is not None


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_token_is_refused_and_not_told(tmp_path: Path, name: str) -> None:
    found = ask(tokens_of(tmp_path), HOSTILE[name])
    assert isinstance(found, Denied), name
    assert found.reason_code == 0x86
    for told in HOSTILE[name].split(b"."):
        assert len(told) < 8 or told.decode()[:8] not in found.why
    assert "alice" not in found.why


@pytest.mark.parametrize("password", [b"", b"secret", b"eyJ", b"a.b.c", b"eyJ.a", b"eyJ.a.b.c"])
def test_what_is_no_token_is_for_others(tmp_path: Path, password: bytes) -> None:
    assert ask(tokens_of(tmp_path), password) is None


def test_issuer_and_client_identifier_are_compared(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, jwt_issuer="us", jwt_client_id_claim="device")
    claims = {**CLAIMS, "iss": "us", "device": "dev1"}
    assert isinstance(ask(tokens, token(claims), "dev1"), Identity)
    assert isinstance(ask(tokens, token(claims), "dev2"), Denied)
    assert isinstance(ask(tokens, token({**claims, "iss": "them"}), "dev1"), Denied)
    assert isinstance(ask(tokens, token({**CLAIMS, "iss": "us"}), "dev1"), Denied)


def test_shared_secret_as_the_only_key(tmp_path: Path) -> None:
    secret = bytes(range(32))
    key = {"kty": "oct", "alg": "HS256", "k": part(secret).decode()}
    tokens = tokens_of(tmp_path, [key], jwt_algorithms=("HS256",))
    made = jwt.encode(CLAIMS, secret, algorithm="HS256").encode()
    found = ask(tokens, made)
    assert isinstance(found, Identity)
    assert tokens.holds(found)
    assert isinstance(
        ask(tokens, jwt.encode(CLAIMS, bytes(32), algorithm="HS256").encode()), Denied
    )


def test_a_login_ends_with_its_key(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path)
    found = ask(tokens, GOOD)
    assert isinstance(found, Identity)
    read = tokens.read()
    assert read is not None
    tokens.use({"two": read["two"]})
    assert not tokens.holds(found)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "JSON object"),
        ("{", "JSON object"),
        ("{}", "'keys'"),
        ('{"keys": []}', "'keys'"),
        ('{"keys": [7]}', "key 1: not an object"),
        (
            '{"keys": [{"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"}]}',
            "key 1: HS256 is not one of",
        ),
        ('{"keys": [{"kty": "RSA", "n": "secret"}]}', "key 1: it is not a usable key"),
        (json.dumps({"keys": [jwk(RSA, "a", use="enc")]}), "not for signatures"),
        (json.dumps({"keys": [jwk(RSA, "a"), jwk(OTHER, "a")]}), "key 2: another key"),
    ],
    ids=lambda told: None if "key_ops" not in told else f"keys of {told.count('kty')}",
)
def test_faults_of_the_keys_are_told(tmp_path: Path, text: str, why: str) -> None:
    tokens = tokens_of(tmp_path)
    Path(tokens.path).write_text(text)
    with pytest.raises(AccessFileError, match=why) as caught:
        tokens.read()
    assert "secret" not in str(caught.value)
    assert "c2VjcmV0" not in str(caught.value)


@pytest.mark.parametrize(
    "section",
    [
        {"jwt_keys_file": "k"},
        {"jwt_keys_file": "k", "jwt_audience": "a", "jwt_algorithms": ()},
        {"jwt_keys_file": "k", "jwt_audience": "a", "jwt_algorithms": ("HS256", "RS256")},
        {"acl_file": "a"},
    ],
)
def test_section_that_leaves_a_door_open_is_refused(section: dict[str, Any]) -> None:
    with pytest.raises(SectionFaultsError):
        AccessConfig(**section)
