"""A configuration that is read again by command, while its server runs."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from motelog.bridge.sync import SyncAdmin
from motelog.core.broker.config import BrokerConfig
from motelog.core.store.cleanup import HOUR_MS
from tests.support.broker_stack import started_stack, store_config
from tests.support.cli import motelog_here, started_motelog

FILE = """\
[namesrv]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[broker]
listen = "127.0.0.1:0"
{broker}
[broker.store]
directory = "{directory}"
commitlog_file_bytes = 1048576
[gateway]
listen = "127.0.0.1:0"
{gateway}
"""


def test_a_running_server_takes_what_it_can(tmp_path: Path) -> None:
    path = tmp_path / "motelog.toml"

    def write(broker: str = "", gateway: str = "") -> None:
        text = FILE.format(broker=broker, gateway=gateway, directory=tmp_path / "store")
        path.write_text(text)

    write()
    with started_motelog("up", "--config", str(path), "--json", "--log-level=info") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        admin = ["--admin", ready["console"]]
        assert motelog_here("config", "reload", *admin).stdout == "no difference\n"
        write(broker="auto_create_topics = false", gateway="will_bytes_max = 7\nworkers = 2")
        for more in (["--dry-run"], []):
            result = motelog_here("config", "reload", *admin, "--json", *more)
            assert result.returncode == 0, result.stderr
            told = {one["key"]: one for one in map(json.loads, result.stdout.splitlines())}
            assert {key: one["outcome"] for key, one in told.items()} == {
                "broker.auto_create_topics": "applied",
                "gateway.will_bytes_max": "applied",
                "gateway.workers": "needs restart",
            }
        with SyncAdmin(namesrv=ready["namesrv"]) as client:
            shown = client.broker_config("broker-a")
        assert shown["autoCreateTopicEnable"] == "false"
        write(gateway="will_bytes_max = 'a lot'")
        result = motelog_here("config", "reload", *admin)
        assert (result.returncode, "gateway.will_bytes_max" in result.stderr) == (78, True)
        write(gateway="will_bytes_max = 7")
        setting = ["config", "set", "gateway.will_bytes_max", "8", *admin]
        result = motelog_here(*setting)
        assert (result.returncode, "change it there" in result.stderr) == (5, True)
        write()
        setting[3] = "eight"
        assert motelog_here(*setting).returncode == 78
        setting[3] = "8"
        assert "applied" in motelog_here(*setting).stdout
        show = ("config", "show", str(path), "--origin", "--under", "gateway")
        assert "gateway.will_bytes_max = 8 # runtime store" in " ".join(
            motelog_here(*show).stdout.split()
        )
        assert "applied" in motelog_here("config", "unset", *setting[2:3], *admin).stdout
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
        assert "action=reload_config" in errors
        assert "action=set_config_key" in errors
        assert "key=gateway.will_bytes_max before=16384 after=7 outcome='applied'" in errors


async def test_a_broker_and_its_store_take_their_keys(tmp_path: Path) -> None:
    async with started_stack(tmp_path, topics_max=100) as stack:
        broker = stack.broker
        store = store_config(tmp_path, retention_hours=5, disk_used_percent_max=77)
        broker.configure(BrokerConfig(store=store, fast_failure=False, topics_max=3))
        parts = broker.parts
        assert parts.store.cleaner._retention._retention_ms == 5 * HOUR_MS
        assert parts.store.disk_watch._config.disk_used_percent_max == 77
        assert broker._config.topics_max == 100
        assert parts.processors.flow.send_wait_ms_max is None
