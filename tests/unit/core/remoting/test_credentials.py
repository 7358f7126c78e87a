"""Signatures: frames that RocketMQ's own AclClientRPCHook has signed, and ours."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from motelog.core.remoting.credentials import (
    ACCESS_KEY,
    SIGNATURE,
    Credentials,
    is_signed,
    signature,
)
from motelog.core.remoting.frames import RemotingCommand, RequestCode, decode, encode

FOLDER = Path(__file__).parents[3] / "vectors" / "rocketmq" / "acl"
VECTORS: dict[str, Any] = json.loads((FOLDER / "signed_frames.json").read_bytes())
SECRET = VECTORS["secret_key"].encode()
FRAMES = [
    pytest.param(bytes.fromhex(text), id=f"{version} {name}")
    for version, frames in VECTORS["frames"].items()
    for name, text in frames
]


def test_there_are_frames_of_both_releases() -> None:
    assert len(FRAMES) == 16


@pytest.mark.parametrize("frame", FRAMES)
def test_java_s_signatures_are_right(frame: bytes) -> None:
    command = decode(frame)
    assert command.ext[ACCESS_KEY] == VECTORS["access_key"]
    assert is_signed(command, SECRET)
    assert not is_signed(command, SECRET + b"x")


@pytest.mark.parametrize("frame", FRAMES)
def test_our_signature_is_java_s(frame: bytes) -> None:
    command = decode(frame)
    theirs = dict(command.ext)
    command.ext = {n: v for n, v in theirs.items() if n not in (ACCESS_KEY, SIGNATURE)}
    token = command.ext.pop("SecurityToken", None)
    Credentials(VECTORS["access_key"], VECTORS["secret_key"], token).sign(command)
    assert command.ext == theirs


@pytest.mark.parametrize("frame", FRAMES)
def test_whatever_is_changed_makes_the_signature_wrong(frame: bytes) -> None:
    for name in decode(frame).ext:
        command = decode(frame)
        command.ext[name] += "x"
        assert not is_signed(command, SECRET), name
    command = decode(frame)
    command.ext["added"] = "x"
    assert not is_signed(command, SECRET)
    command = decode(frame)
    command.body += b"x"
    assert not is_signed(command, SECRET)


@pytest.mark.parametrize("given", [None, "", "=", "ü\ud800", "A" * 28])
def test_no_text_passes_for_a_signature(given: str | None) -> None:
    command = RemotingCommand(RequestCode.HEART_BEAT, ext={ACCESS_KEY: "somebody"})
    if given is not None:
        command.ext[SIGNATURE] = given
    assert not is_signed(command, SECRET)


def test_old_clients_do_not_sign_the_field_for_unique_keys() -> None:
    def signed(version: int, ext: dict[str, str]) -> str:
        return signature(RemotingCommand(RequestCode.QUERY_MESSAGE, version=version, ext=ext), b"s")

    flag = {"_UNIQUE_KEY_QUERY": "true"}
    assert signed(399, {"topic": "T", **flag}) == signed(399, {"topic": "T"})
    assert signed(400, {"topic": "T", **flag}) != signed(400, {"topic": "T"})


def test_signing_again_replaces_the_signature() -> None:
    command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T"})
    Credentials("one", "secret of one").sign(command)
    Credentials("two", "secret of two").sign(command)
    assert is_signed(decode(encode(command)), b"secret of two")
    assert command.ext.keys() == {"topic", ACCESS_KEY, SIGNATURE}


def test_the_secret_is_in_no_text_and_goes_to_other_processes() -> None:
    credentials = Credentials("devices", "planted-secret", "planted-token")
    assert "planted" not in f"{credentials} {credentials!r} {[credentials]}"
    assert "devices" in repr(credentials)
    assert pickle.loads(pickle.dumps(credentials)) == credentials


@pytest.mark.parametrize(("access_key", "secret_key"), [("", "planted"), ("planted", "")])
def test_credentials_without_a_half_are_refused_without_naming_the_other(
    access_key: str, secret_key: str
) -> None:
    with pytest.raises(ValueError, match="credentials need") as refusal:
        Credentials(access_key, secret_key)
    assert "planted" not in str(refusal.value)
