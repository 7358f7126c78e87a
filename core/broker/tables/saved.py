"""The tables that outlive the broker's process, and the files under config/ that keep them.

Owns: which table is in which file, when each is saved. Must not touch: the content of a table, a
file's bytes (core.state_file).

    topics.json  subscriptionGroup.json    at each change, and each ``save_interval_s``
    messageRequestMode.json  users.json    the same
    consumerOffset.json                    each ``save_interval_s``, and at the end
      or lmqConsumerOffset.json            with light queues; the other one is read if it is newer
    consumerOrderInfo.json                 the same
"""

from __future__ import annotations

from motelog.core.acl.users import users_file
from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.tables.tables import Tables
from motelog.core.flag import Flag
from motelog.core.saved_table import SavedTable
from motelog.core.state_file import StateFile


def state_file(config: BrokerConfig, name: str, *, holds: str) -> StateFile:
    """Return one of the broker's state files; ``holds`` is what the log says is lost with it."""
    return StateFile(f"{config.store.directory}/config/{name}", holds=holds)


class SavedTables:
    """``load`` in a thread before the broker serves; ``run`` while it does."""

    def __init__(self, config: BrokerConfig, tables: Tables) -> None:
        self._interval_s = config.save_interval_s
        self._tables = tables
        self._topics = SavedTable(
            state_file(config, "topics.json", holds="settings of topics"), tables.topics
        )
        self._groups = SavedTable(
            state_file(config, "subscriptionGroup.json", holds="settings of consumer groups"),
            tables.groups,
        )
        names = ["consumerOffset.json", "lmqConsumerOffset.json"]
        if config.store.lmq:
            names.reverse()
        own, self._other_offsets = [
            state_file(config, name, holds="consume offsets: later messages are delivered again")
            for name in names
        ]
        self._offsets = SavedTable(own, tables.offsets)
        self._orders = SavedTable(
            state_file(
                config,
                "consumerOrderInfo.json",
                holds="messages that ordered groups have in work: delivered again at once",
            ),
            tables.orders,
        )
        self._modes = SavedTable(
            state_file(config, "messageRequestMode.json", holds="how groups ask for messages"),
            tables.request_modes,
        )

        self._users = SavedTable(
            users_file(f"{config.store.directory}/config/users.json"), tables.users
        )

    def load(self, *, is_expected: bool) -> None:
        """Load the saved tables; StoreDamagedError if one has no good copy left."""
        for saved in (self._topics, self._groups):
            saved.load(is_expected=is_expected)
        # The other file is there if light queues were enabled or disabled since.
        other = self._other_offsets.load(dict)
        self._offsets.load(is_expected=is_expected and other is None)
        if other is not None:
            self._tables.offsets.load_newer(other)
        # A broker that has never used these has no file.
        for saved in (self._orders, self._modes, self._users):
            saved.load(is_expected=False)

    async def save_settings(self) -> str | None:
        """Save settings that have changed; return why that failed, or None."""
        topics_fault = await self._topics.save_if_changed()
        groups_fault = await self._groups.save_if_changed()
        modes_fault = await self._modes.save_if_changed()
        users_fault = await self._users.save_if_changed()
        return topics_fault or groups_fault or modes_fault or users_fault

    async def save(self) -> None:
        """Save every table that has changed."""
        await self.save_settings()
        await self._orders.save_if_changed()
        await self._offsets.save_if_changed()

    async def run(self) -> None:
        """Save changes at each interval, and a new or changed topic or group at once."""
        changed = Flag()
        self._tables.topics.listeners.append(lambda _topic: changed.set())
        self._tables.groups.listeners.append(lambda: changed.set())
        while True:
            await changed.take(self._interval_s)
            await self.save()
