"""Tells an operator which receivers get a message, and how far each has got with it.

Owns: what a receiver's place in a queue says about one message. Must not touch: the log. Cursors
and messages in flight are enough, so an answer about an old message costs the same.
Invariant: an answer checks a bounded number of receivers, so that it does not delay clients.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final

from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.mqtt.topics import is_shared, matches
from motelog.gateway.operator.answers import MessageReceiver, MessageReceivers, Place
from motelog.gateway.operator.sessions import OperatorSessions
from motelog.gateway.sessions.groups import Group, Part, part_number
from motelog.gateway.sessions.inflight import Flight, group_of, read_flight
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import QOS_MASK
from motelog.gateway.state.stored import FlightState, StoredSession

#: Most receivers in one answer; further ones are only counted.
RECEIVERS_MAX: Final = 100


class Receivers:
    """Finds the receivers of messages at one gateway."""

    def __init__(self, log: LogPort, sessions: OperatorSessions, delivery: Delivery) -> None:
        self._log_port = log
        self._sessions = sessions
        self._delivery = delivery

    def of_message(
        self, name: str, topic: str, queue_names: Collection[str], queue_offset: int
    ) -> MessageReceivers:
        """Return the clients connected here, and the groups, whose filters match topic ``name``.

        The message is in the queue of ``topic`` that has one of ``queue_names`` (``describe``).
        """
        queue = self._queue(topic, queue_names)
        if not queue:
            return MessageReceivers(receivers=[], more=0)
        wanting = self._sessions.wanting(name)
        found = [
            self._of_group(one, queue, queue_offset)
            if isinstance(one, Group)
            else self._of_session(one, name, queue, queue_offset)
            for one in islice(wanting, RECEIVERS_MAX)
        ]
        return MessageReceivers(receivers=found, more=len(wanting) - len(found))

    def of_client(
        self,
        client_id: str,
        name: str,
        topic: str,
        queue_names: Collection[str],
        queue_offset: int,
    ) -> MessageReceivers | None:
        """Return the same for one session, connected or away; None if there is none. ViewError."""
        stored = None if is_shared(client_id) else self._sessions.describe(client_id)
        if stored is None:
            return None
        queue = self._queue(topic, queue_names)
        if not queue:
            return MessageReceivers(receivers=[], more=0)
        live = self._sessions.live(client_id)
        found = [self._of_stored(stored, name, queue, queue_offset, is_connected=live is not None)]
        if live is not None:
            session, _ = live
            found += [
                self._of_group(group, queue, queue_offset)
                for group in session.shares.values()
                if matches(group.topic_filter, name)
            ]
        return MessageReceivers(receivers=found, more=0)

    def _queue(self, topic: str, queue_names: Collection[str]) -> str:
        """Return the name of a queue in this gateway's log, "" if the log does not know it."""
        names = (self._log_port.describe(queue) for queue in self._log_port.queues(topic))
        return next((name for name in names if name in queue_names), "")

    def _of_session(
        self, session: Session, name: str, queue: str, queue_offset: int
    ) -> MessageReceiver:
        stored = self._sessions.describe(session.client_id)
        assert stored is not None, "it is connected"
        return self._of_stored(stored, name, queue, queue_offset, is_connected=True)

    def _of_stored(
        self, stored: StoredSession, name: str, queue: str, queue_offset: int, *, is_connected: bool
    ) -> MessageReceiver:
        wanting = [one for one in stored.filters if matches(one.topic_filter, name)]
        begins = [one.since.get(queue, 0) for one in wanting]
        return MessageReceiver(
            client_id=stored.client_id,
            is_connected=is_connected,
            share=None,
            filters=[one.topic_filter for one in wanting],
            qos=max((one.options & QOS_MASK for one in wanting), default=0),
            place=place_in(stored, queue, queue_offset)
            if wanting and min(begins) <= queue_offset
            else "not wanted",
        )

    def _of_group(self, group: Group, queue: str, queue_offset: int) -> MessageReceiver:
        member, flight = next(
            (
                (session, flight)
                for session, flight in _flights(group)
                if flight.queue_offset == queue_offset
                and self._delivery.queue_name(flight.queue_number) == queue
            ),
            (None, None),
        )
        place: Place
        if flight is not None:
            place = "released" if flight.is_released else "in flight"
        else:
            place = self._place_in_part(group.parts[part_number(queue)], queue, queue_offset)
        return MessageReceiver(
            client_id="" if member is None else member.client_id,
            is_connected=True,
            share=group.name,
            filters=[group.topic_filter],
            qos=max(group[session].options & QOS_MASK for session in group.sessions()),
            place=place,
        )

    def _place_in_part(self, part: Part, queue: str, queue_offset: int) -> Place:
        if not part.is_held:
            return "elsewhere"
        stored = self._delivery.shares.states.stored(part, left_ms=None)
        place = place_in(stored, queue, queue_offset)
        # A message in flight to the group but to no member was given back. It is handed out again.
        return "waits" if place == "in flight" else place


def place_in(stored: StoredSession, queue: str, queue_offset: int) -> Place:
    """Return how far a receiver whose filters match a message has got with it."""
    for flight in stored.inflight:
        if (flight.queue, flight.queue_offset) == (queue, queue_offset):
            return "released" if flight.state == FlightState.RELEASED else "in flight"
    is_past = queue_offset < stored.cursors.get(queue, 0)
    return "passed" if is_past or (queue, queue_offset) in stored.delivered else "waits"


def _flights(group: Group) -> Iterator[tuple[Session, Flight]]:
    """Yield the group's messages that are in flight, each with its member."""
    for session in group.sessions():
        if session.has_inflight:
            for _, flight in session.inflight:
                if group_of(flight) == group.number:
                    yield session, read_flight(flight)
