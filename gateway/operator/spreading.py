"""The queues of MQTT's topics at the brokers of a cluster: a broker joins, or is gone for good.

Owns: which topics a broker gets, with which settings, and that this is written down for gateways.
Must not touch: how they follow (``log.remote.orders``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from motelog.bridge.admin import Admin
from motelog.bridge.client import Client
from motelog.core.errors import MotelogError
from motelog.core.message import MessageQueue
from motelog.core.remoting.frames import Permission
from motelog.gateway.log.remote.entries import Entries
from motelog.gateway.log.remote.order import KEY, Order
from motelog.gateway.log.remote.orders import LEAD_S, now_ms

#: How long name servers may take to know a new topic.
KNOWN_WITHIN_S: Final = 10.0


class SpreadingError(MotelogError):
    """The brokers cannot be changed like this."""


async def extend(broker: str, topics: Sequence[str] = (), **servers: Any) -> list[str]:
    """Create topics at ``broker`` as they are elsewhere, unless it has them; return which.

    These are the ``topics``, by default all to which gateways have appended. Gateways move a share
    of the publishers to the new queues LEAD_S later. SpreadingError if no such broker is registered
    or a new topic does not become known; ``servers`` are the name servers and how to reach them.
    """
    async with Admin(**servers) as admin, _entries(servers) as entries:
        if broker not in {one.name for one in await admin.brokers()}:
            raise SpreadingError(f"no broker {broker} is registered at the name servers")
        orders = _read(entries)
        made: dict[str, int] = {}
        for name in topics or sorted(orders):
            known = await admin.topic(name)
            if not known or any(one.broker_name == broker for one in known):
                continue
            await admin.put_topic(
                name,
                queues=known[0].read_queues,
                write_queues=known[0].write_queues,
                permission=known[0].permission,
                attributes=known[0].attributes,
                brokers=[broker],
            )
            made[name] = known[0].write_queues if known[0].permission & Permission.WRITE else 0
        for name, count in made.items():
            await _known(admin, name, broker)
            if name in orders:  # else the first gateway that appends to it writes it down
                added = [MessageQueue(name, broker, queue_id) for queue_id in range(count)]
                order = orders[name].without(added)
                more = order.with_more(added, from_ms=now_ms() + int(LEAD_S * 1000))
                await entries.write(KEY + name, str(more))
    return list(made)


async def _known(admin: Admin, topic: str, broker: str) -> None:
    """Return when name servers know a topic at a broker: gateways ask them when they move."""
    with trio.move_on_after(KNOWN_WITHIN_S):
        while all(one.broker_name != broker for one in await admin.topic(topic)):  # noqa: ASYNC110  # a server has no event
            await trio.sleep(0.1)
        return
    raise SpreadingError(f"the name servers do not learn that {topic} is at {broker}: try again")


async def retire(broker: str, **servers: Any) -> list[str]:
    """Take the queues of a broker that is gone out of the order of all topics; return which.

    Other queues get its publishers, and what was in its queues is not delivered. SpreadingError if
    the broker is registered: gateways would add its queues again.
    """
    async with Admin(**servers) as admin:
        if broker in {one.name for one in await admin.brokers()}:
            raise SpreadingError(f"the broker {broker} is registered at the name servers")
    changed = []
    async with _entries(servers) as entries:
        for name, order in _read(entries).items():
            left = order.without([one for one in order.queues if one.broker_name == broker])
            if left != order and left.groups:
                await entries.write(KEY + name, str(left))
                changed.append(name)
    return sorted(changed)


def _read(entries: Entries) -> dict[str, Order]:
    """Return the orders of topics that are written down."""
    found: dict[str, Order] = {}
    for key, entry in entries.known.items():
        order = Order.parse(key.removeprefix(KEY), entry.text) if key.startswith(KEY) else None
        if order is not None:
            found[key.removeprefix(KEY)] = order
    return found


@asynccontextmanager
async def _entries(servers: dict[str, Any]) -> AsyncIterator[Entries]:
    """Read what gateways have written down."""
    client = Client(**servers, groups=dict, unregister={})
    await client.enter()
    try:
        entries = Entries(client)
        await entries.read()
        yield entries
    finally:
        await client.leave()
