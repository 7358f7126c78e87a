"""The name server's key-value table outlives a kill right behind the answer, and a restart."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import trio

from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.remoting.frames import RequestCode, ResponseCode, loads
from motelog.core.state_file import StateFile
from tests.support.broker_stack import connected, joined
from tests.support.cli import motelog, started_motelog

ORDER = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
ANY_PORTS = [f"--{name}=127.0.0.1:0" for name in ("mqtt", "namesrv", "broker", "admin")]


@pytest.mark.parametrize("round_", range(3))
async def test_an_entry_that_was_acknowledged_is_there_after_a_kill(
    tmp_path: Path, round_: int
) -> None:
    command = ("dev", "--data", str(tmp_path), "--json", *ANY_PORTS)
    for number in range(2):
        with started_motelog(*command) as process:
            assert process.stdout is not None
            ready = json.loads(await trio.to_thread.run_sync(process.stdout.readline))
            async with connected(ready["namesrv"]) as peer:
                answer = await peer.ask(RequestCode.GET_KV_CONFIG, ORDER)
                assert answer.ext == ({} if number == 0 else {"value": f"broker-a:{round_}"})
                ext = ORDER | {"value": f"broker-a:{round_}"}
                answer = await peer.ask(RequestCode.PUT_KV_CONFIG, ext)
                assert answer.code == ResponseCode.SUCCESS
                process.send_signal(signal.SIGKILL)
    file = tmp_path / "namesrv" / "kvConfig.json"
    assert loads(file.read_bytes())["configTable"] == {
        "ORDER_TOPIC_CONFIG": {"T": f"broker-a:{round_}"}
    }


async def test_a_change_that_cannot_be_saved_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async with trio.open_nursery() as nursery:
        file = StateFile(str(tmp_path / "kv.json"), holds="entries")
        server = NameServer(NamesrvConfig(listen="127.0.0.1:0"), kv_file=file)
        await nursery.start(server.run)
        async with connected(joined(server.address)) as peer:
            monkeypatch.setattr(StateFile, "save", fail)
            for _ in range(2):
                answer = await peer.ask(RequestCode.PUT_KV_CONFIG, ORDER | {"value": "a:1"})
                assert answer.code == ResponseCode.SYSTEM_ERROR
            monkeypatch.undo()
            answer = await peer.ask(RequestCode.DELETE_KV_CONFIG, ORDER)
            assert answer.code == ResponseCode.SUCCESS
            assert (await peer.ask(RequestCode.GET_KV_CONFIG, ORDER)).code == 22
        nursery.cancel_scope.cancel()
    assert len([text for text in caplog.messages if "not saved" in text]) == 1
    assert loads((tmp_path / "kv.json").read_bytes())["configTable"] == {}


def test_a_table_that_cannot_be_read_is_wrong_configuration(tmp_path: Path) -> None:
    text = (
        f'roles = ["namesrv"]\n[namesrv]\nlisten = "127.0.0.1:0"\nkv_config_path = "{tmp_path}"\n'
    )
    (tmp_path / "motelog.toml").write_text(text)
    result = motelog("up", "--config", str(tmp_path / "motelog.toml"))
    assert result.returncode == 78
    assert f"the key-value table cannot be read from {tmp_path}: Is a directory" in result.stderr
