"""RocketMQ's command line tools against our servers, and what they print.

What is expected of each command is what it prints of Apache RocketMQ 5.3.3, on which the same list
runs, without what is a matter of the run (addresses, times, offsets in the log).
docs/reference/rocketmq.md lists the commands that do not work here, with the reason.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import trio

from motelog.bridge.producer import Producer
from motelog.core.message import Message
from motelog.core.remoting.frames import RequestCode
from tests.reference.rocketmq import NOT_HERE
from tests.support.broker_stack import connected, started_stack
from tests.support.java import DRIVER, VERSION_4, VERSION_5, run_tool

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

TOPIC, GROUP, COUNT = "orders", "billing", 8
DEADLINE_S = 90
#: What updateTopicList and updateSubGroupList are given.
TOPICS = [{"topicName": "listed", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}]
GROUPS = [{"groupName": "listed", "retryMaxTimes": 3}]

#: Commands as words, and patterns of lines that they print.
COMMANDS = (
    ("updateTopic -b {broker} -t made -r 2 -w 2", "create topic to {broker} success", "perm=RW-"),
    ("consumerStatus -g {group} -i {client}", "#Consumer Properties#", "CONSUME_PASSIVELY"),
    (
        "queryMsgById -i {offset_id} -t {topic} -g {group} -d {client}",
        "consumeResult=CR_SUCCESS",
    ),
    ("consumerProgress -g {group}", r"{topic} +{name} +0 +2 +2", "Consume Inflight Total: 0|TPS"),
    ("resetOffsetByTime -g {group} -t {topic} -s 0", r"{name} +0 +0", r"{name} +3 +0"),
    ("skipAccumulatedMessage -g {group} -t {topic}", r"{name} +0 +2", r"{name} +3 +2"),
    # RocketMQ 5's broker copies nothing to a group that is not there.
    ("updateSubGroup -b {broker} -g copy", "create subscription group to {broker} success"),
    ("cloneGroupOffset -s {group} -d copy -t {topic}", "clone group offset success"),
    ("brokerConsumeStats -b {broker}", r"{topic} +{group} +{name}", "Diff Total: "),
    ("queryCq -b {broker} -t {topic} -q 0 -i 0 -c 10", "max: 2, min: 0", "tagsCode=2598919"),
    ("updateBrokerConfig -b {broker} -k autoCreateTopicEnable -v true", "success, {broker}"),
    ("updateTopicPerm -b {broker} -t made -p 4", "perm from 6 to 4 in {broker} success"),
    ("updateSubGroup -b {broker} -g made -s false", "consumeEnable=false"),
    ("updateSubGroup -b {broker} -g made -s true", "consumeEnable=true"),
    ("topicList", "^{topic}$", "^%RETRY%{group}$", "^TBW102$"),
    ("topicRoute -t {topic}", '"brokerName":"{name}"', '"writeQueueNums":4'),
    ("topicStatus -t {topic}", r"{name} +3 +0 +2 "),
    ("topicClusterList -t {topic}", "^DefaultCluster$"),
    ("clusterList", r"DefaultCluster +{name} +0 +{broker} +V"),
    ("brokerStatus -b {broker}", r"putTps +:", r"runtime +:", r"brokerVersionDesc +: V"),
    ("getBrokerConfig -b {broker}", "brokerName += +{name}", "autoCreateTopicEnable += +true"),
    ("consumerConnection -g {group}", "JAVA", "{topic} .*\\*", "MessageModel: CLUSTERING"),
    ("producerConnection -g producers -t {topic}", "PYTHON"),
    ("queryMsgById -i {offset_id} -t {topic}", "Keys: .*k0", "Queue Offset: +0"),
    ("queryMsgByKey -t {topic} -k k0", "{unique_id} +0 +0"),
    ("queryMsgByUniqueKey -t {topic} -i {unique_id}", "Topic: +{topic}", "Queue ID: +0"),
    ("queryMsgByOffset -t {topic} -b {name} -i 0 -o 0", "Keys: .*k0"),
    ("printMsgByQueue -t {topic} -a {name} -i 0 -p true -d true", "k0"),
    ("statsAll -t {topic}", "{topic} +{group} +0 "),
    ("resetOffsetByTime -g copy -t {topic} -s now", r"{name} +3 +2"),
    ("cleanExpiredCQ -b {broker}", "success"),
    ("cleanUnusedTopic -b {broker}", "success"),
    ("deleteExpiredCommitLog -b {broker}", "success"),
    ("updateKvConfig -s space -k key -v value", "create or update kv config to namespace success"),
    ("deleteKvConfig -s space -k key", "delete kv config from namespace success"),
    ("updateOrderConf -t {topic} -m put -v {name}:4", "update orderConf success"),
    ("updateOrderConf -t {topic} -m get", r"orderConf=\[{name}:4\]"),
    ("wipeWritePerm -b {name}", r"wipe write perm of broker\[{name}\] .* OK"),
    ("addWritePerm -b {name}", r"add write perm of broker\[{name}\] .* OK"),
    ("getNamesrvConfig", "listenPort += "),
    ("sendMsgStatus -b {name} -c 1 -s 16", "SEND_OK"),
    ("checkMsgSendRT -t {topic} -a 2 -s 16", "true"),
    ("allocateMQ -t {topic} -i a,b", '"a":', '"b":'),
    ("sendMessage -t {topic} -p hello -c TagB -k kk", "^apache +[0-3] +SEND_OK +[0-9A-F]{32}"),
    (
        "consumeMessage -t {topic} -g reader -b {name} -i 0 -o 0 -c 2",
        "^Consume ok",
        "queueOffset=1, ",
    ),
    ("printMsg -t {topic} -d true", "minOffset=0, maxOffset=[2-9], .*topic={topic}", "k0"),
    ("clusterList -m", r"^DefaultCluster +{name} +0 +0 +\d+ +\d+"),
    ("topicList -c", "^DefaultCluster +{topic} +{group}"),
    ("topicRoute -t {topic} -l", r"DefaultCluster +{name} +\{0={broker}\} +4 +4 +6"),
    ("updateTopic -c DefaultCluster -t made -r 3 -w 3 -o true", r"orderConf=\[{name}:3\]"),
    ("queryCq -b {broker} -t none -q 0 -i 0 -c 10", "CODE: 1  DESC: 0@none is not exist!"),
    ("consumerConnection -g none", "CODE: 17  DESC: No topic route info .*: %RETRY%none"),
    ("producerConnection -g none -t {topic}", r"CODE: 1  DESC: .* group\[none\] not exist"),
    (
        "topicRoute -t none",
        "CODE: 17  DESC: No topic route info in name server for the topic: none",
    ),
    ("exportConfigs -c DefaultCluster -f {folder}", "export .*configs.json success"),
    ("exportMetadata -c DefaultCluster -f {folder}", "export .*metadata.json success"),
    ("exportMetrics -c DefaultCluster -f {folder}", "export .*metrics.json success"),
)
#: These are the last ones in every run.
LAST = (
    ("deleteSubGroup -b {broker} -g copy", "delete subscription group .*copy.* success"),
    ("deleteTopic -c DefaultCluster -t made", "delete topic .*made.* from cluster .* success"),
)
#: What came with the tools of 5.x.
OF_RELEASE_5 = (
    ("updateTopic -b {broker} -t made -r 2 -w 2 -a +message.type=FIFO", "message.type=FIFO"),
    ("updateSubGroup -b {broker} -g made -o true", "consumeMessageOrderly=true"),
    ("getConsumerConfig -g made", "consumeMessageOrderly += +true", "consumeTimeoutMinute += +15"),
    ("getConsumerConfig -g made", "groupRetryPolicy += +.*type=CUSTOMIZED"),
    ("producer -b {broker}", "producers", "remoteIP=/127.0.0.1:[0-9]+, language=PYTHON"),
    (
        "updateTopicList -b {broker} -f {topics_file}",
        "submit batch of topic config to {broker} success",
    ),
    ("topicRoute -t listed", '"writeQueueNums":3'),
    (
        "updateSubGroupList -b {broker} -f {groups_file}",
        "submit batch of group config to {broker} success",
    ),
    ("getConsumerConfig -g listed", "retryMaxTimes += +3"),
    ("haStatus -b {broker}", "#MasterAddr\t{broker}", "#SlaveNum\t0"),
    (
        "setConsumeMode -b {broker} -t {topic} -g {group} -m POP -q 8",
        r"topic\[{topic}\] group\[{group}\] consume mode\[POP\] popShareQueueNum\[8\]",
    ),
)
#: Commands that other tests run.
ELSEWHERE = {
    "queryMsgTraceById",  # tests/integration/test_traces.py
    # tests/integration/test_acl_java.py
    *("createUser", "updateUser", "deleteUser", "getUser", "listUser", "copyUser"),
    *("createAcl", "updateAcl", "deleteAcl", "getAcl", "listAcl", "copyAcl"),
}


@pytest.mark.java_all
@pytest.mark.parametrize("version", [VERSION_5, VERSION_4])
async def test_the_tools_print_what_they_print_of_apaches_broker(
    tmp_path: Path, version: str
) -> None:
    async with started_stack(tmp_path, name="apache") as stack:
        folder = tmp_path / "exported"
        await check_tools(version, stack.namesrv_address, stack.broker_address, folder)


@pytest.mark.java_all
@pytest.mark.parametrize("version", [VERSION_5, VERSION_4])
async def test_each_command_is_run_or_has_a_reason_why_not(tmp_path: Path, version: str) -> None:
    listed = await run_tool(version, tmp_path)
    there = set(re.findall(r"^   (\w+) +\S", listed, re.MULTILINE))
    assert len(there) > 50
    run = {command.split(" ")[0] for command, *_ in (*COMMANDS, *OF_RELEASE_5, *LAST)}
    named = set(re.findall(r"`(\w+)`", " ".join(commands for commands, _ in NOT_HERE)))
    assert there - run - named - ELSEWHERE == set()


async def check_tools(version: str, namesrv: str, broker: str, folder: Path) -> None:
    """Run the commands on a topic with messages and a running Java consumer."""
    async with connected(broker) as peer, Producer(namesrv=namesrv, group="producers") as producer:
        ext = {
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "readQueueNums": 4,
            "writeQueueNums": 4,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
        }
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        with trio.fail_after(10):
            while not await _is_routed(producer):  # noqa: ASYNC110  # no event
                await trio.sleep(0.1)
        queues = await producer.queues(TOPIC)
        sent = [
            await producer.send(Message(TOPIC, b"m", "TagA", (f"k{i}",)), queue=queues[i % 4])
            for i in range(COUNT)
        ]
        ((_, client),) = await order(version, "keep", namesrv, TOPIC, GROUP, str(COUNT))
        names = {
            "topic": TOPIC,
            "group": GROUP,
            "name": "apache",
            "broker": broker,
            "client": client,
            "folder": str(folder),
            "topics_file": _listed(folder, "topics", TOPICS),
            "groups_file": _listed(folder, "groups", GROUPS),
            "offset_id": sent[0].offset_id,
            "unique_id": sent[0].message_id,
        }
        commands = [*COMMANDS, *(OF_RELEASE_5 if version == VERSION_5 else ())]
        faults: list[str] = []
        try:
            for command, *patterns in (*commands, *LAST):
                if version == VERSION_4 and command.startswith("queryMsgById"):
                    command = command.replace(" -t {topic}", "")  # it has no such option
                words = [word.format(**names) for word in command.split(" ")]
                text = await run_command(version, namesrv, words)
                faults.extend(
                    f"{' '.join(words)}: no {pattern!r} in\n{text[:1500]}"
                    for pattern in patterns
                    if re.search(_filled(pattern, names), text, re.MULTILINE) is None
                )
        finally:
            await order(version, "release", namesrv)
        assert not faults, "\n\n".join(faults)


def _listed(folder: Path, name: str, value: object) -> str:
    """Write what a command reads into a file; return its path."""
    folder.mkdir(exist_ok=True)
    file = folder / f"given-{name}.json"
    file.write_bytes(msgspec.json.encode(value))
    return str(file)


async def run_command(version: str, namesrv: str, words: list[str]) -> str:
    """Return what a command prints.

    In one process, a command may be given the client that the one before it is still ending.
    """
    for _ in range(3):
        with trio.fail_after(DEADLINE_S):
            text = "\n".join(await DRIVER.lines(version, "mqadmin", namesrv, *words))
        if "event executor terminated" not in text:
            break
    return text


async def _is_routed(producer: Producer) -> bool:
    """Whether the topic has a route of its own: producers are told of the template's before."""
    return not (await producer._client.route(TOPIC, for_sending=True)).is_stand_in


async def order(version: str, *words: str) -> list[list[str]]:
    with trio.fail_after(DEADLINE_S):
        lines = await DRIVER.lines(version, *words)
    return [line.split("\t") for line in lines if line.startswith("client\t")]


def _filled(pattern: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        pattern = pattern.replace("{" + name + "}", re.escape(value))
    return pattern
