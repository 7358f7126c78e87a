"""Connected clients: the members of each consumer and producer group, and group subscriptions.

Owns: membership, subscriptions, expiry of silent members, and their limit. Must not touch: sockets,
clocks, files; ``owner`` is a member's connection, time enters as ``now_ms`` of a monotonic
clock. The return value of a method says whether a group's members or subscriptions changed; the
caller then notifies the members (rebalance). Spec: RocketMQ ConsumerManager, ProducerManager.

Invariants: a group without members is removed; each member is in the index of its owner, and its
groups in the index of its client id.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from motelog.core.broker.tables.heartbeat import ConsumerData, Subscription
from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import Language, ResponseCode

OwnerT = TypeVar("OwnerT", bound=Hashable)


@dataclass(slots=True)
class Member(Generic[OwnerT]):
    """One client in one group."""

    client_id: str
    owner: OwnerT
    language: Language
    version: int
    last_seen_ms: int


@dataclass(slots=True)
class Group(Generic[OwnerT]):
    """One group with at least one member; fields below ``members`` are for consumers only."""

    name: str
    members: dict[str, Member[OwnerT]] = field(default_factory=dict)
    consume_type: str = ""
    message_model: str = ""
    from_where: str = ""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    #: The fingerprint of the heartbeat with the subscriptions, 0 if it had none.
    fingerprint: int = 0


class GroupMembers(Generic[OwnerT]):
    """The groups of one kind (consumers or producers) of one broker."""

    def __init__(self, *, members_max: int) -> None:
        self._members_max = members_max
        self._members_count = 0
        self._groups: dict[str, Group[OwnerT]] = {}
        self._by_owner: dict[OwnerT, set[tuple[str, str]]] = {}
        self._by_client: dict[str, dict[str, Member[OwnerT]]] = {}

    def get(self, name: str) -> Group[OwnerT] | None:
        return self._groups.get(name)

    def groups(self) -> Iterator[Group[OwnerT]]:
        return iter(self._groups.values())

    @property
    def members_count(self) -> int:
        return self._members_count

    def owner_of(self, client_id: str) -> OwnerT | None:
        """Return the connection of a client in any group, None if it is in none."""
        members = self._by_client.get(client_id)
        # The group of its last join or heartbeat: the others may have an older connection.
        return None if members is None else next(reversed(members.values())).owner

    def beat(self, name: str, member: Member[OwnerT], consumer: ConsumerData | None = None) -> bool:
        """Note one heartbeat; return whether members or subscriptions changed.

        BrokerError if the member would exceed the limit; then nothing changed.
        """
        group = self._groups.get(name)
        known = None if group is None else group.members.get(member.client_id)
        if known is None and self._members_count >= self._members_max:
            text = f"{self._members_max} group members are already connected"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        if group is None:
            group = self._groups[name] = Group(name)
        is_changed = known is None or known.owner != member.owner
        if known is None:
            self._members_count += 1
        elif known.owner != member.owner:
            self._unlink(known.owner, name, member.client_id)
        group.members[member.client_id] = member
        self._by_owner.setdefault(member.owner, set()).add((name, member.client_id))
        groups = self._by_client.setdefault(member.client_id, {})
        groups.pop(name, None)
        groups[name] = member
        if consumer is not None:
            is_changed = _take_subscriptions(group, consumer) or is_changed
        return is_changed

    def is_told_otherwise(self, name: str, consumer: ConsumerData) -> bool:
        """Return whether a group's subscriptions come from a heartbeat with different ones.

        If so, the member sends all of its own with each heartbeat, so that those of other members
        do not replace them for good. A heartbeat without subscriptions may be the first after a
        restart: that counts as different too.
        """
        group = self._groups.get(name)
        known = 0 if group is None else group.fingerprint
        if known == 0:
            return consumer.is_brief
        return known != consumer.fingerprint

    def leave(self, name: str, client_id: str, owner: OwnerT) -> bool:
        """Remove a client from a group; return whether it was a member by this connection."""
        group = self._groups.get(name)
        member = None if group is None else group.members.get(client_id)
        if group is None or member is None or member.owner != owner:
            return False
        self._remove(group, client_id)
        return True

    def close_owner(self, owner: OwnerT) -> list[str]:
        """Remove the members of a closed connection; return the groups that changed."""
        entries = list(self._by_owner.get(owner, ()))
        for name, client_id in entries:
            self._remove(self._groups[name], client_id)
        return [name for name, _ in entries]

    def expire(self, now_ms: int, silence_ms_max: int) -> list[str]:
        """Remove the members that were silent for too long; return the groups that changed."""
        silent = [
            (group, member.client_id)
            for group in self._groups.values()
            for member in group.members.values()
            if now_ms - member.last_seen_ms > silence_ms_max
        ]
        for group, client_id in silent:
            self._remove(group, client_id)
        return [group.name for group, _ in silent]

    def _remove(self, group: Group[OwnerT], client_id: str) -> None:
        member = group.members.pop(client_id)
        self._members_count -= 1
        self._unlink(member.owner, group.name, client_id)
        groups = self._by_client[client_id]
        del groups[group.name]
        if not groups:
            del self._by_client[client_id]
        if not group.members:
            del self._groups[group.name]

    def _unlink(self, owner: OwnerT, name: str, client_id: str) -> None:
        entries = self._by_owner[owner]
        entries.discard((name, client_id))
        if not entries:
            del self._by_owner[owner]

    def _check(self) -> None:
        """Assert the invariants of the module docstring."""
        entries = {
            (member.owner, group.name, member.client_id)
            for group in self._groups.values()
            for member in group.members.values()
        }
        assert all(group.members for group in self._groups.values())
        assert len(entries) == self._members_count
        indexed = {(o, name, client) for o, set_ in self._by_owner.items() for name, client in set_}
        assert indexed == entries
        by_client = {
            (member.owner, name, client)
            for client, members in self._by_client.items()
            for name, member in members.items()
        }
        assert by_client == entries
        assert all(self._by_client.values())


def _take_subscriptions(group: Group[OwnerT], consumer: ConsumerData) -> bool:
    """Update the group's subscriptions; return whether topics or their filters changed."""
    group.consume_type = consumer.consume_type
    group.message_model = consumer.message_model
    group.from_where = consumer.from_where
    if consumer.is_brief:
        return False
    group.fingerprint = consumer.fingerprint
    is_changed = False
    for topic, subscription in consumer.subscriptions.items():
        known = group.subscriptions.get(topic)
        if known is None:
            is_changed = True
        # Members may differ for a while (a rolling update); the newest version applies to all.
        if known is None or subscription.sub_version > known.sub_version:
            group.subscriptions[topic] = subscription
    for topic in group.subscriptions.keys() - consumer.subscriptions.keys():
        del group.subscriptions[topic]
        is_changed = True
    return is_changed
