"""The whole tree: defaults, what a file must say, and the refusal of foreign addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from motelog.config import check_listen, config_of, load_config
from motelog.core.broker.config import BrokerConfig
from motelog.core.config import ConfigFaultsError
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.store.config import StoreConfig
from motelog.gateway.config import GatewayConfig

SECTIONS: dict[str, type[msgspec.Struct]] = {
    "namesrv": NamesrvConfig,
    "broker": BrokerConfig,
    "broker.store": StoreConfig,
    "gateway": GatewayConfig,
}

STORE = '[broker.store]\ndirectory = "d"\n'


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "motelog.toml"
    path.write_text(text, encoding="utf-8")
    return path


def faults(path: Path) -> list[str]:
    with pytest.raises(ConfigFaultsError) as caught:
        load_config(path)
    return [str(fault).replace(f"{path}:", "") for fault in caught.value.faults]


def test_a_folder_for_messages_is_all_that_must_be_said(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, STORE))
    assert config.roles == ("namesrv", "broker", "gateway", "console")
    assert config.broker is not None
    assert config.broker.store.directory == "d"
    assert config.gateway.listen == "127.0.0.1:1883"
    assert config.admin.listen == "127.0.0.1:8080"


def test_environment_reaches_nested_sections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTELOG__BROKER__STORE__FLUSH", "sync")
    monkeypatch.setenv("MOTELOG__ROLES", '["namesrv", "broker"]')
    config = load_config(write(tmp_path, STORE))
    assert config.broker is not None
    assert config.broker.store.flush == "sync"
    assert config.roles == ("namesrv", "broker")


def test_environment_reaches_a_table_except_for_what_is_fixed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MOTELOG__BROKER__PULL_BYTES_MAX", "70000")
    monkeypatch.setenv("MOTELOG__ROLES", '["namesrv"]')
    table = {"broker": {"listen": "127.0.0.1:0", "store": {"directory": "d"}}}
    config = config_of(table, name="test", fixed=["MOTELOG__ROLES"])
    assert config.broker is not None
    assert (config.broker.pull_bytes_max, config.broker.listen) == (70_000, "127.0.0.1:0")
    assert len(config.roles) == 4
    monkeypatch.setenv("MOTELOG__BROKER__PULL_BYTES_MAX", "many")
    with pytest.raises(ConfigFaultsError, match="variable MOTELOG__BROKER__PULL_BYTES_MAX"):
        config_of({"broker": {"store": {"directory": "d"}}}, name="test")


def test_rules_of_the_topic_map_are_read(tmp_path: Path) -> None:
    rule = '[[gateway.topic_map]]\nfilter = "a/+/#"\nqueue_topic = "a"\n'
    config = load_config(write(tmp_path, STORE + rule))
    assert config.gateway.topic_map[0].filter == "a/+/#"


ADMIN_TOKENS = 'tokens_file = "/t"'
ADMIN_TLS = 'tls_certificate = "/c"'


@pytest.mark.parametrize(
    ("lines", "needed"),
    [
        ([], ["tokens_file = ", "tls_certificate = "]),
        ([ADMIN_TOKENS], ["tls_certificate = "]),
        ([ADMIN_TLS], ["tokens_file = "]),
        (['insecure = "I know"'], ["tokens_file = "]),
        ([ADMIN_TOKENS, ADMIN_TLS], []),
        ([ADMIN_TOKENS, 'insecure = "I know"'], []),
    ],
)
def test_admin_listener_for_other_machines_is_refused_with_the_lines_to_add(
    tmp_path: Path, lines: list[str], needed: list[str]
) -> None:
    text = "\n".join(["roles = ['console']", "[admin]", 'listen = "0.0.0.0:7000"', *lines])
    path = write(tmp_path, text)
    if not needed:
        assert load_config(path).admin.listen == "0.0.0.0:7000"
        return
    (fault,) = faults(path)
    assert "0.0.0.0:7000 can be reached from other machines" in fault
    told = fault.partition("add to [admin] ")[2]
    assert [key for key in ("tokens_file = ", "tls_certificate = ") if key in told] == needed


def test_plain_listener_of_the_gateway_is_for_this_machine(tmp_path: Path) -> None:
    (fault,) = faults(write(tmp_path, f'{STORE}[gateway]\nlisten = "0.0.0.0:7000"\n'))
    assert fault.startswith("4: gateway.listen: 0.0.0.0:7000 is not a loopback address")
    assert "this listener has no TLS" in fault


SERVER_TLS = 'tls_certificate = "/c"'
ENFORCING = 'tls_mode = "enforcing"'
WHO = 'acl_file = "PATH" or tls_client_ca = "PATH"'
OPTIONAL = 'tls_client_ca = "/ca"\ntls_client_certificates = "optional"'


@pytest.mark.parametrize("section", ["namesrv", "broker"])
@pytest.mark.parametrize(
    ("lines", "needed"),
    [
        ([], [SERVER_TLS, WHO]),
        (['acl_file = "/a"'], [SERVER_TLS]),
        ([SERVER_TLS], [WHO]),
        ([SERVER_TLS, OPTIONAL], [WHO]),
        ([SERVER_TLS, 'acl_file = "/a"', 'tls_mode = "permissive"'], [ENFORCING]),
        ([SERVER_TLS, 'acl_file = "/a"'], []),
        ([SERVER_TLS, 'tls_client_ca = "/ca"'], []),
        (['insecure = "I know"'], []),
    ],
)
def test_remoting_listener_for_other_machines_is_refused_with_the_lines_to_add(
    tmp_path: Path, section: str, lines: list[str], needed: list[str]
) -> None:
    text = [f'roles = ["{section}"]', f"[{section}]", 'listen = "192.0.2.7:7000"', *lines]
    path = write(tmp_path, "\n".join([*text, STORE if section == "broker" else ""]))
    if not needed:
        assert load_config(path)
        return
    (fault,) = faults(path)
    assert fault.startswith(
        f"3: {section}.listen: 192.0.2.7:7000 can be reached from other machines"
    )
    told = fault.partition(f"Add to [{section}] ")[2]
    for line in (SERVER_TLS, ENFORCING, WHO):
        assert (line.replace('"/c"', '"PATH"') in told) == (line in needed), told


@pytest.mark.parametrize(
    ("lines", "is_refused"),
    [
        ('tls_client_ca = "/ca"', True),
        (OPTIONAL, False),
        ("", False),
    ],
)
def test_no_client_gets_past_a_certificate_that_is_required(
    tmp_path: Path, lines: str, is_refused: bool
) -> None:
    path = write(tmp_path, f'{STORE}[namesrv]\n{SERVER_TLS}\ntls_mode = "permissive"\n{lines}\n')
    if not is_refused:
        assert load_config(path)
        return
    (fault,) = faults(path)
    assert "namesrv.tls_mode: permissive allows clients without TLS" in fault


@pytest.mark.parametrize(
    ("namesrv", "broker", "told"),
    [
        (SERVER_TLS, "", "namesrv.tls_certificate: a client uses either TLS or plain connections"),
        ("", SERVER_TLS, "broker.tls_certificate: a client uses either TLS or plain connections"),
        (
            SERVER_TLS,
            SERVER_TLS,
            "namesrv.tls_certificate: the name server of this process requires",
        ),
        ("", 'tls_file = "/ca"', "broker.tls_file: it is for name servers with TLS"),
        (SERVER_TLS, f'{SERVER_TLS}\ntls_file = "/ca"', None),
        (f'{SERVER_TLS}\ntls_mode = "permissive"', "", None),
    ],
)
def test_name_server_and_broker_of_one_process_go_together(
    tmp_path: Path, namesrv: str, broker: str, told: str | None
) -> None:
    path = write(tmp_path, f"[namesrv]\n{namesrv}\n[broker]\n{broker}\n{STORE}")
    if told is None:
        assert load_config(path)
    else:
        assert any(told in fault for fault in faults(path)), faults(path)


def test_roles_are_checked_together(tmp_path: Path) -> None:
    (fault,) = faults(write(tmp_path, 'roles = ["gateway"]\n'))
    assert 'the role "gateway" needs the role "broker" in the same process, or gateway.nam' in fault
    assert "names one role twice" in faults(write(tmp_path, 'roles = ["console", "console"]\n'))[0]
    assert "roles is empty" in faults(write(tmp_path, "roles = []\n"))[0]
    assert "needs broker.store.directory" in faults(write(tmp_path, ""))[0]


def test_a_gateway_may_have_its_brokers_elsewhere(tmp_path: Path) -> None:
    text = 'roles = ["gateway"]\n[gateway]\nnamesrv = ["127.0.0.1:9876", "192.0.2.1:9876"]\n'
    config = load_config(write(tmp_path, text))
    assert config.gateway.namesrv == ("127.0.0.1:9876", "192.0.2.1:9876")
    (fault,) = faults(write(tmp_path, text.replace("9876", "0")))
    assert "a port is at least 1" in fault


def test_workers_need_a_name_server_to_find_their_broker(tmp_path: Path) -> None:
    workers = "[gateway]\nworkers = 2\n"
    assert load_config(write(tmp_path, STORE + workers)).gateway.workers == 2
    alone = f'roles = ["broker", "gateway"]\n{STORE}{workers}'
    (fault,) = faults(write(tmp_path, alone))
    assert "gateway.workers needs gateway.namesrv, or the role" in fault
    load_config(write(tmp_path, f'{alone}namesrv = ["127.0.0.1:9876"]\n'))
    load_config(write(tmp_path, f'{alone}[broker]\nnamesrv = ["127.0.0.1:9876"]\n'))
    load_config(write(tmp_path, alone.replace("2", "1")))
    (fault,) = faults(write(tmp_path, f'{STORE}{workers}name = "{63 * "n"}"\n'))
    assert "name is too long for 2 workers" in fault


def test_unknown_role_and_unknown_section_are_reported_together(tmp_path: Path) -> None:
    found = faults(write(tmp_path, 'roles = ["brokr"]\n[gatway]\nlisten = "x"\n'))
    assert found == [
        '1: roles: ["brokr"] is not accepted; expected an array, each element '
        '"broker" or "console" or "gateway" or "namesrv"',
        "2: gatway: unknown key; did you mean gateway?",
    ]


def test_all_faults_of_all_sections_come_at_once_in_their_lines(tmp_path: Path) -> None:
    text = """\
[broker]
listen = "127.0.0.1:1883"
name = ""
namesrv = ["nowhere"]
[broker.store]
directory = "d"
commitlog_file_bytes = "1GB"
delay_levels = "1x"
[namesrv]
scan_interval_s = 0
[gateway]
default_topic = "bad topic"
response_information = "reply/{user_name}"
connect_timeout_s = "1500ms"
[[gateway.topic_map]]
filter = "a/#/b"
queue_topic = "{9}"
[[gateway.topic_map]]
filter = "a/+"
queue_topic = "{3}"
tag = "{client}"
"""
    found = faults(write(tmp_path, text))
    assert [tuple(fault.split(": ")[:2]) for fault in found] == [
        ("2", "broker.listen"),
        ("3", "broker.name"),
        ("4", "broker.namesrv"),
        ("7", "broker.store.commitlog_file_bytes"),
        ("8", "broker.store.delay_levels"),
        ("10", "namesrv.scan_interval_s"),
        ("12", "gateway.default_topic"),
        ("13", "gateway.response_information"),
        ("14", "gateway.connect_timeout_s"),
        ("16", "gateway.topic_map[0].filter"),
        ("20", "gateway.topic_map[1].queue_topic"),
        ("21", "gateway.topic_map[1].tag"),
    ]
    assert "broker.listen and gateway.listen have the same port 1883" in found[0]
    assert "sizes like 64MiB and 1GiB" in found[3]
    assert "{3} is always empty" in found[10]


@pytest.mark.parametrize(
    ("listen", "fault"),
    [
        ({"admin": "127.0.0.1:9876"}, "admin.listen and namesrv.listen have the same port 9876"),
        ({"gateway": "localhost:8080"}, "admin.listen and gateway.listen have the same port 8080"),
        (
            {"gateway": "127.0.0.1:10909"},
            "the VIP port two below broker.listen (none with broker.vip = false) and gateway",
        ),
        ({"namesrv": "127.0.0.1:10909"}, "namesrv.listen and the VIP port two below broker.listen"),
        ({"admin": "localhost:10909"}, "admin.listen and the VIP port two below broker.listen"),
        ({"gateway": "[::1]:8080"}, None),
        ({"gateway": "127.0.0.1:0", "admin": "127.0.0.1:0"}, None),
    ],
)
def test_one_port_for_two_listeners(
    tmp_path: Path, listen: dict[str, str], fault: str | None
) -> None:
    text = STORE + "".join(f'[{section}]\nlisten = "{at}"\n' for section, at in listen.items())
    path = write(tmp_path, text)
    if fault is None:
        load_config(path)
    else:
        (found,) = faults(path)
        assert fault in found


@pytest.mark.parametrize(
    ("addresses", "fault"),
    [
        (["0.0.0.0:1883"], "gateway.listen and the listener a have the same port 1883"),
        (["[::]:1883"], "gateway.listen and the listener a have the same port 1883"),
        (["127.0.0.1:1884", "0.0.0.0:1884"], "the listener a and the listener b have the same"),
        (["[::1]:1884", "0.0.0.0:1884"], None),
        (["127.0.0.2:1884", "127.0.0.1:1884"], None),
    ],
)
def test_one_port_for_all_addresses_and_one_of_them(
    tmp_path: Path, addresses: list[str], fault: str | None
) -> None:
    path = write(
        tmp_path,
        STORE
        + "".join(
            f'[[listener]]\nname = "{name}"\naddress = "{address}"\ninsecure = "I know"\n'
            for name, address in zip("ab", addresses, strict=False)
        ),
    )
    if fault is None:
        load_config(path)
    else:
        (found,) = faults(path)
        assert fault in found


def test_a_role_that_does_not_run_takes_no_port(tmp_path: Path) -> None:
    text = 'roles = ["namesrv"]\n[admin]\nlisten = "127.0.0.1:9876"\n'
    assert load_config(write(tmp_path, text)).roles == ("namesrv",)


def test_every_size_and_time_takes_a_unit() -> None:
    """What a key's name says of its unit is true: none is forgotten, and none is no number."""
    smallest = {"bytes": "B", "ms": "ms", "s": "s", "hours": "h"}
    tried = []
    for section, kind in SECTIONS.items():
        for field in msgspec.structs.fields(kind):
            unit = next((u for word, u in smallest.items() if word in field.name.split("_")), None)
            if unit is None or not isinstance(field.default, int | float):
                continue
            table: dict[str, Any] = {"broker": {"store": {"directory": "d"}}}
            inner = table
            for part in section.split("."):
                inner = inner.setdefault(part, {})
            inner[field.name] = f"{field.default}{unit}"
            found: Any = config_of(table, name="test")
            for part in section.split("."):
                found = getattr(found, part)
            assert getattr(found, field.name) == field.default
            tried.append(field.name)
    assert len(tried) >= 40


@pytest.mark.parametrize("text", ["127.0.0.1:0", "127.8.9.1:1", "[::1]:1883", "localhost:80"])
def test_loopback_addresses(text: str) -> None:
    assert check_listen(text)[1] == int(text.rpartition(":")[2])


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "example.org:1"])
def test_other_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="not a loopback address"):
        check_listen(text)


TLS = 'tls_certificate = "c.pem"\ntls_key = "k.pem"\n'
LISTENER = '[[listener]]\nname = "a"\n'


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ('address = "0.0.0.0:8883"', ("tls_certificate = ", "tls_key = ")),
        (f'address = "0.0.0.0:8883"\n{TLS}', ("tls_client_ca = ",)),
        (f'address = "0.0.0.0:8883"\n{TLS}{OPTIONAL}', ("has no login",)),
        ('address = "gateway.example:8883"', ("tls_certificate = ",)),
    ],
)
def test_listener_for_other_machines_is_refused_with_the_lines_to_add(
    tmp_path: Path, keys: str, wanted: tuple[str, ...]
) -> None:
    found = faults(write(tmp_path, f"{STORE}{LISTENER}{keys}\n"))
    for text in wanted:
        assert any(text in fault for fault in found), found


def test_listener_that_lets_anybody_in_beside_logins_is_told_so(tmp_path: Path) -> None:
    access = '[access]\npassword_file = "/p"\nallow_anonymous = true\n'
    afar = f'{STORE}{access}{LISTENER}address = "0.0.0.0:8883"\n{TLS}'
    (found,) = faults(write(tmp_path, afar))
    assert "add logins = [...] to it" in found
    assert load_config(write(tmp_path, f'{afar}logins = ["password"]\n')).listener


LISTENER_ACL = '[{}]\nacl_file = "/a"\n'
LISTENER_TOKENS = '[admin]\ntokens_file = "/t"\n'


@pytest.mark.parametrize("protocol", ["broker", "namesrv", "admin"])
def test_listener_of_each_role_for_other_machines_needs_tls_and_a_login(
    tmp_path: Path, protocol: str
) -> None:
    login = LISTENER_TOKENS if protocol == "admin" else LISTENER_ACL.format(protocol)
    named = f'{LISTENER}for = "{protocol}"\naddress = "0.0.0.0:7000"\n'
    both = f"{STORE}{login}{named}{TLS}"
    (listener,) = load_config(write(tmp_path, both)).listener
    assert listener.protocol == protocol
    (no_tls,) = faults(write(tmp_path, f"{STORE}{login}{named}"))
    assert "has no TLS, so anyone in between could read" in no_tls
    (no_login,) = faults(write(tmp_path, f"{STORE}{named}{TLS}"))
    assert "has no login" in no_login
    key = "[admin] tokens_file" if protocol == "admin" else f"[{protocol}] acl_file"
    assert f'{key} = "PATH"' in no_login
    meant = f'{STORE}{named}insecure = "I know"\n'
    if protocol == "admin":  # without tokens whoever is there may do everything
        assert "has no login" in faults(write(tmp_path, meant))[0]
    else:
        assert load_config(write(tmp_path, meant)).listener
        certified = f'{STORE}{named}{TLS}tls_client_ca = "/ca"\n'
        assert load_config(write(tmp_path, certified)).listener
        permissive = faults(write(tmp_path, f'{both}tls_mode = "permissive"\n'))
        assert any("permissive allows clients without TLS" in fault for fault in permissive)


@pytest.mark.parametrize("protocol", ["broker", "namesrv", "admin"])
@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ('address = "127.0.0.1:1"\nwebsocket = "/mqtt"', 'websocket is for listeners of "mqtt"'),
        ('address = "127.0.0.1:1"\nlogins = ["password"]', 'logins is for listeners of "mqtt"'),
        ('address = "unix:/tmp/s"', 'a Unix socket is for listeners of "mqtt"'),
        ('address = "127.0.0.1:1883"', "the same port"),
    ],
)
def test_keys_of_mqtt_are_refused_at_other_listeners(
    tmp_path: Path, protocol: str, keys: str, why: str
) -> None:
    found = faults(write(tmp_path, f'{STORE}{LISTENER}for = "{protocol}"\n{keys}\n'))
    assert any(why in fault for fault in found), found


def test_listeners_may_be_plain_and_secure_as_clients_of_both_servers_need(tmp_path: Path) -> None:
    secure = f'for = "broker"\naddress = "127.0.0.1:7000"\n{TLS}'
    ca = 'tls_file = "/ca"'
    servers = f"[namesrv]\n{SERVER_TLS}\n[broker]\n{ca}\n{STORE}"
    (fault,) = faults(write(tmp_path, servers))
    assert "add to [broker], or to a listener for it, tls_certificate" in fault
    assert load_config(write(tmp_path, f"{servers}{LISTENER}{secure}")).listener


def test_listener_of_a_role_that_is_not_run_is_none(tmp_path: Path) -> None:
    text = f'roles = ["namesrv"]\n{LISTENER}for = "broker"\naddress = "127.0.0.1:9876"\n'
    config = load_config(write(tmp_path, text))
    assert config.listener
    assert not config.listeners


def test_logins_stand_for_certificates_of_clients(tmp_path: Path) -> None:
    listener = f'{LISTENER}address = "0.0.0.0:8883"\n{TLS}'
    access = '[access]\npassword_file = "users"\n'
    assert load_config(write(tmp_path, f"{STORE}{access}{listener}")).listener
    found = faults(write(tmp_path, f"{STORE}{access}allow_anonymous = true\n{listener}"))
    assert any("has no login" in fault for fault in found), found


@pytest.mark.parametrize(
    ("logins", "why"),
    [
        ('["password"]', None),
        ('["password", "scram"]', None),
        ('["anonymous"]', "has no login"),
        ('["jwt"]', "the login jwt, which no client can use: add to [access] jwt_keys_file"),
        ('["certificate"]', "the login certificate needs tls_client_ca"),
        ('["pasword"]', "pasword"),
    ],
)
def test_logins_of_a_listener_are_some_of_those_that_are_set(
    tmp_path: Path, logins: str, why: str | None
) -> None:
    access = '[access]\npassword_file = "users"\nallow_anonymous = true\n'
    listener = f'{LISTENER}address = "0.0.0.0:8883"\n{TLS}logins = {logins}\n'
    path = write(tmp_path, f"{STORE}{access}{listener}")
    if why is None:
        assert load_config(path).listener
    else:
        found = faults(path)
        assert any(why in fault for fault in found), found


def test_logins_that_nobody_checks_are_refused(tmp_path: Path) -> None:
    listener = f'{LISTENER}address = "127.0.0.1:1"\nlogins = ["anonymous"]\n'
    for access in ("", "[access]\nallow_anonymous = true\n"):
        (fault,) = faults(write(tmp_path, f"{STORE}{access}{listener}"))
        assert "the login anonymous, which no client can use" in fault


@pytest.mark.parametrize(
    "keys",
    [
        f'address = "0.0.0.0:8883"\n{TLS}tls_client_ca = "ca.pem"',
        'address = "0.0.0.0:1884"\ninsecure = "I know"',
        'address = "127.0.0.1:8083"\nwebsocket = "/mqtt"',
        'address = "[::1]:8883"\nproxy_protocol = true',
        'address = "unix:/tmp/mqtt.sock"',
    ],
)
def test_listener_that_is_safe_or_meant_is_taken(tmp_path: Path, keys: str) -> None:
    (listener,) = load_config(write(tmp_path, f"{STORE}{LISTENER}{keys}\n")).listener
    assert listener.name == "a"


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ('address = "unix:mqtt.sock"', "absolute path"),
        ('address = "unix:/no/such/folder/s"', "is not a folder"),
        ('address = "127.0.0.1"', "is not HOST:PORT"),
        ('address = "127.0.0.1:1"\nwebsocket = "mqtt"', "must begin with /"),
        ('address = "127.0.0.1:1"\ntls_key = "k.pem"', "needs tls_certificate"),
        ('address = "127.0.0.1:1883"', "the same port"),
    ],
)
def test_listener_that_cannot_be_is_refused(tmp_path: Path, keys: str, why: str) -> None:
    found = faults(write(tmp_path, f"{STORE}{LISTENER}{keys}\n"))
    assert any(why in fault for fault in found), found


SLAVE = '[broker]\nid = 1\nnamesrv = ["127.0.0.1:9876"]\n' + STORE


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('roles = ["broker", "gateway"]\n' + SLAVE, "is a slave"),
        ('roles = ["broker"]\n[broker]\nid = 1\n' + STORE, "add namesrv"),
        (
            'roles = ["broker"]\n[broker]\nreplicate = "sync"\nha_listen = "0.0.0.0:10912"\n'
            + STORE,
            "ha_peers",
        ),
        ('roles = ["broker"]\n[broker]\nreplicate = "sync"\nha_peers = ["x"]\n' + STORE, "'x'"),
        (
            '[admin]\nlisten = "127.0.0.1:10912"\n[broker]\nreplicate = "async"\n' + STORE,
            "admin.listen and broker.ha_listen have the same port 10912",
        ),
        ('roles = ["broker"]\n' + SLAVE, None),
        ('[admin]\nlisten = "127.0.0.1:10912"\n' + STORE, None),
    ],
)
def test_copies_of_a_log(tmp_path: Path, text: str, fault: str | None) -> None:
    path = write(tmp_path, text)
    if fault is None:
        load_config(path)
        return
    with pytest.raises(ConfigFaultsError, match=fault):
        load_config(path)
