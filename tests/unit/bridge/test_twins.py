"""The forms for threads and for asyncio have the methods of the trio-native classes."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from motelog.bridge import asyncio as for_asyncio
from motelog.bridge import sync
from motelog.bridge.admin import Admin
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.push.consumer import PushConsumer
from motelog.bridge.simple import SimpleConsumer
from motelog.bridge.transactions import TransactionProducer

NATIVE = (Producer, TransactionProducer, PullConsumer, PushConsumer, SimpleConsumer)
PAIRS = [
    (native, getattr(module, f"{prefix}{native.__name__}"))
    for native in NATIVE
    for module, prefix in ((sync, "Sync"), (for_asyncio, "Asyncio"))
] + [(Admin, sync.SyncAdmin)]
#: What a form leaves out: batches by queue and what is uncommitted are for these forms themselves,
#: the address of a broker is for Spark's readers. On asyncio a poll is enough.
LEFT_OUT = {
    "SyncPullConsumer": {"poll_batches", "uncommitted", "broker_address"},
    "AsyncioPullConsumer": {"poll_batches", "uncommitted", "broker_address", "pull"},
}


def public(kind: type[Any]) -> dict[str, Any]:
    return {name: member for name, member in inspect.getmembers(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("native", "twin"), PAIRS, ids=[twin.__name__ for _, twin in PAIRS])
def test_a_twin_has_every_method_with_its_arguments(native: type[Any], twin: type[Any]) -> None:
    theirs = public(twin)
    missing = public(native).keys() - theirs.keys() - LEFT_OUT.get(twin.__name__, set())
    assert missing == set()
    assert LEFT_OUT.get(twin.__name__, set()) <= public(native).keys() - theirs.keys()
    for name, member in public(native).items():
        if inspect.isfunction(member) and inspect.isfunction(theirs.get(name)):
            wanted, found = (inspect.signature(one).parameters for one in (member, theirs[name]))
            shown = {p.name: (p.kind, p.default) for p in wanted.values() if p.name != "self"}
            assert {
                p.name: (p.kind, p.default) for p in found.values() if p.name != "self"
            } == shown, name


@pytest.mark.parametrize(("native", "twin"), PAIRS, ids=[twin.__name__ for _, twin in PAIRS])
def test_a_twin_is_made_with_the_same(native: type[Any], twin: type[Any]) -> None:
    made, found = (dict(inspect.signature(one.__init__).parameters) for one in (native, twin))
    if made.pop("options", None) is not None:
        made |= inspect.signature(Producer.__init__).parameters
    assert list(found) == list(made)
    assert {p.name: p.default for p in found.values()} == {p.name: p.default for p in made.values()}
