"""Shared subscriptions: the groups, where each part begins, and what their members gave back.

Owns: the groups, the live path to them, the messages that members gave back. Must not touch: who is
a member (``sharing``), which member gets a message (``handing``), how a group catches up
(``lagging_groups``), what is stored (``part_states``).
Invariants: a message whose delivery began at QoS 2 is never sent to another member. [MQTT-4.8.2-4]
[MQTT-4.8.2-5] From the queues of a part that is not held, only messages that were handed out before
are sent.
Spec: MQTT 5.0 section 4.8.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from motelog.gateway.deliver.handing import Handing, Matched
from motelog.gateway.deliver.lagging_groups import LaggingGroups
from motelog.gateway.deliver.part_states import PartStates
from motelog.gateway.deliver.watched import WatchedQueue, WatchedQueues, count_lost
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.sessions.groups import Group, Part
from motelog.gateway.sessions.inflight import flight_of, group_of, read_flight
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import QOS_MASK
from motelog.gateway.state.stored import StoredSession

#: Sessions for which the messages given back are remembered.
HAD_MAX: Final = 10_000


class Shares:
    """Delivers to the groups of one gateway."""

    def __init__(
        self,
        log: LogPort,
        queues: WatchedQueues,
        handing: Handing,
        *,
        has_grown: Callable[[WatchedQueue], bool],
        wake: Callable[[], None],
    ) -> None:
        self._log_port = log
        self._queues = queues
        self._handing = handing
        self._sender = handing.sender
        self._metrics = handing.metrics
        self._clock = handing.journal.clock
        self._has_grown = has_grown
        self.states = PartStates(queues)
        self._by_number: dict[int, Group] = {}
        #: Given back by sessions that outlive their connection: sent to them again, a message is a
        #: repetition.
        self._had: dict[str, dict[tuple[str, int, int], int]] = {}
        self.lagging = LaggingGroups(log, queues, handing, had=self._had, wake=wake)
        self.go_on = self.lagging.go_on

    def subscribe(self, group: Group) -> None:
        """Deliver messages that are published from now on to a new group."""
        self._by_number[group.number] = group
        self._queues.subscribe(group.topic_filter)
        for queue in self._queues.needed(group.topic_filter):
            if queue.is_waiting or self._has_grown(queue):
                # The live position is before the tail: messages before the tail are not for the
                # group.
                tail = self._log_port.tail(queue.handle)
                if tail is not None and tail > queue.next_offset:
                    group.standing[queue] = tail

    def resume(self, part: Part, stored: StoredSession) -> None:
        """Let a part stand by at its stored offsets, until ``hold``."""
        group = part.group
        by_name = {queue.name: queue for queue in self.states.queues_of(part, stored.cursors)}
        strange = stored.cursors.keys() - by_name.keys()
        if strange:
            self._queues.count_gone(self._metrics, part.client_id, strange)
        for name, queue in by_name.items():
            group.reached(queue)
            # A queue without a cursor in the part was created after the part's last record.
            group.standing[queue] = stored.cursors.get(name, 0)
        for name, queue_offset in stored.delivered:
            if name in by_name:
                group.delivered.add((by_name[name], queue_offset))
        for flight in stored.inflight:
            number = self._queues.number_of(flight.queue)
            if number is None:
                lost = flight.queue_offset
                count_lost(self._metrics, flight.queue, lost, lost + 1)
            else:
                group.give_back(flight_of(number, flight.queue_offset, 1, group.number))

    def hold(self, part: Part) -> None:
        """Hand out a part from now on, from where it stands by, or from the live position."""
        group = part.group
        part.is_held = True
        for queue in self.states.queues_of(part):
            cursor = group.standing.pop(queue, None)
            if cursor is None or (cursor == queue.next_offset and queue.is_known):
                continue
            if queue.is_known and cursor > queue.next_offset:
                group.since[queue] = cursor
                cursor = queue.next_offset
            self.lagging.lag(group, queue, cursor)
        self.held_changed(group)
        self.go_on(group)

    def stand_by(self, part: Part) -> StoredSession:
        """Stop handing out a part; return its state, to be stored as left.

        Messages that members have in flight stay here: another part stores them from now on.
        """
        group = part.group
        part.is_held = False
        stored = self.states.stored_with(
            part, self._clock.now_ms(), self.states.take_front_of(part)
        )
        for queue in self.states.queues_of(part):
            if group.lagging is not None and queue in group.lagging:
                group.standing[queue] = max(group.lagging[queue], group.since.get(queue, 0))
                self.lagging.reached(group, queue)
        self._sender.changed.pop(part, None)
        self.held_changed(group)
        return stored

    def held_changed(self, group: Group) -> None:
        """Have the next tick store all parts: a flight may now belong to another of them.

        Later ticks store the parts that have flights, until these are acknowledged.
        """
        for part in group.parts:
            if part.is_stored:
                self._sender.note_change(part)

    def unsubscribe(self, group: Group) -> None:
        """Stop delivery to a group that has no members."""
        del self._by_number[group.number]
        self.lagging.forget(group)
        for part in group.parts:
            self._sender.changed.pop(part, None)
        self._queues.unsubscribe(group.topic_filter)

    def tail_known(self, queue: WatchedQueue) -> None:
        """Resume the groups that wait for the tail of a queue."""
        for group in self._by_number.values():
            if group.lags_in(queue):
                self.lagging.returning[group] = None

    def give_back(self, session: Session) -> None:
        """Take back the unacknowledged messages of a client whose connection has ended.

        QoS 2 messages stay with the session, and so do all messages of groups that have ended.
        """
        if not session.has_inflight:
            return
        groups: dict[Group, None] = {}
        for packet_id, flight in list(session.inflight):
            number = group_of(flight)
            if number and flight & QOS_MASK == 1 and flight > 0:
                group = self._by_number.get(number)
                if group is not None:
                    session.inflight.ack(packet_id)
                    group.parted.pop(session, None)
                    group.give_back(flight)
                    if session.expiry_s:
                        self._note_had(session, group, flight, packet_id)
                    groups[group] = None
        for group in groups:
            self.held_changed(group)
            self.go_on(group)

    def _note_had(self, session: Session, group: Group, flight: int, packet_id: int) -> None:
        had = self._had.pop(session.client_id, {})
        place = read_flight(flight)
        had[group.name, place.queue_number, place.queue_offset] = packet_id
        if len(had) > session.inflight_max:
            del had[next(iter(had))]
        self._had[session.client_id] = had
        if len(self._had) > HAD_MAX:
            del self._had[next(iter(self._had))]

    def begun(self, client_id: str) -> None:
        """Note that a session is new: no message is a repetition for its client."""
        self._had.pop(client_id, None)

    def keeps(self, flight: int) -> bool:
        """Whether a group stores this message in flight, rather than the receiving session."""
        return flight > 0 and flight & QOS_MASK == 1 and group_of(flight) in self._by_number

    def deliver(self, shared: dict[Group, list[Matched]], queue: WatchedQueue, now_ms: int) -> None:
        """Hand out the records of a slice of the live path, or let groups lag."""
        for group, records in shared.items():
            if group.lags_in(queue):
                continue
            if not group.parts[self._queues.parts[queue.number]].is_held:
                group.standing.setdefault(queue, records[0][1][0])
                continue
            if group.front:
                self.lagging.lag(group, queue, records[0][1][0])
                continue
            waits = self._handing.hand_out(group, queue.number, records, now_ms)
            if waits is not None:
                self.lagging.lag(group, queue, waits)
                group.await_room()
