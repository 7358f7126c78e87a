"""A turn: what one gateway has decided since its last append, as values that go one way.

Owns: the values of the turn that is under way, and its time. Must not touch: what they mean. Parts
that decide put them here; ``publish.commit`` appends and answers them, and ``listener`` carries the
rest. No part is called back.

    receive           decide               append               settle and send
    the reactor,  --> publishing,     -->  marks, copies,  -->  PUBACK, PUBREC, PINGRESP
    a second,         exchanges,           publishes:           ends of connections
    a ticket,         subscribing,         one batch            packets that have waited
    an operator       logins               session states:      receivers with room again
                                           one batch

Everything in a gateway happens in a turn: for a batch of the reactor, a second that has passed, a
ticket that has settled. Other tasks run between two turns and find nothing half done. A value that
is put here between turns, as by a log that answers later, asks for the next turn (``wake``).

The order within a turn, and the reasons:

- Publishes are collected until a packet of another kind comes (SUBSCRIBE, DISCONNECT) or the
  packets end, and are then appended together. So each packet takes effect after those before it
  [MQTT-4.6.0], and a turn of publishes, as most turns are, is one append.
- The mark of a QoS 2 message and the copy of a retained one lie before the message in its append. A
  crash in between leaves a mark without a message, and the log is searched for it.
- An answer leaves when its ticket has settled, and so after the append. A PINGRESP does too: it
  says that the log has taken what came before it.
- A connection ends after the answers that it is owed. From ``end`` on it has no place in the
  table, so the rest of its packets do not count; its session is stored when the end is carried out.
- Receivers with room again are served last, when it is known which of them are still connected.

Session states were hard to place. They are a batch of their own, so that the log can refuse one
that is too large without the publishes of others.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple, TypeAlias

from motelog.gateway.log.log_port import Then
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.gateway.sessions.connect_rules import Accepted, Refused
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.session import Session
from motelog.gateway.state.retained import Written
from motelog.gateway.state.stored import Mark, Received

#: A message for the log, as ``core.records.append.AppendMessage``: queue, payload, properties, ...
Message: TypeAlias = tuple[Any, ...]
#: A packet as the frames kernel splits it: connection, first byte, topic name, payload or body,
#: packet identifier, properties or what the kernel has found.
Packet: TypeAlias = tuple[Any, ...]

#: (connection, packet identifier) of each packet that is answered.
Acks: TypeAlias = list[tuple[int, int]]


class NotFound(Enum):
    """Answers of MQTT 5 to packets that stand for no exchange."""

    PUBREL = auto()
    PUBCOMP = auto()


AnswerKind: TypeAlias = PacketType | NotFound


class Ending(NamedTuple):
    """A connection that has to end, and what its client is told."""

    connection: Connection
    reason_code: int
    why: str


class Turn:
    """The turn of one gateway; the lists are emptied in place where a loop holds on to them."""

    def __init__(
        self, connections: list[Connection | None], *, wake: Callable[[], None] = lambda: None
    ) -> None:
        """``wake`` has a turn begin soon, for what is put here while none is under way."""
        self.connections = connections
        self.wake = wake
        self.is_open = False
        #: When the turn began, by the clock's two times; when its packets were read.
        self.now_ms = self.monotonic_ms = 0
        self.began_ns = 0
        #: Publishes to append, and those among them that are answered at QoS 1 and 2.
        self.messages: list[Message] = []
        self.acks: Acks = []
        self.recs: Acks = []
        #: What is appended before them: marks of QoS 2, copies of what is retained.
        self.marks: list[Mark] = []
        self.retained: list[Written] = []
        #: QoS 2 messages that are marked in this turn, and those among them that came once more.
        self.taken: list[tuple[Session, Received]] = []
        self.taken_again: Acks = []
        #: QoS 2 messages that the log has: of sessions that end with their connection.
        self.repeated: Acks = []
        #: Steps of QoS 2 exchanges, whose marks the journal has: how they are answered.
        self.steps: dict[AnswerKind, Acks] = {}
        #: Connections that ping.
        self.pings: list[int] = []
        #: Number -> what was decided about a CONNECT that has come in this turn.
        self.decided: dict[int, Accepted | Refused] = {}
        self.ended: list[Ending] = []
        #: Packets that have waited and are handled now, with the connection that has sent them.
        self.again: list[tuple[Connection, list[Packet]]] = []
        #: Connected sessions that have changed and are to be stored -> who waits for that.
        self.stored: dict[Session, list[Then]] = {}
        #: Sessions with room in their window or socket again.
        self.have_room: dict[Session, None] = {}

    def end(self, connection: Connection, reason_code: int, why: str) -> None:
        """End a connection with a reason code, unless it has ended; MQTT 3 knows no codes."""
        number = connection.number
        if connection.session is not None and self.connections[number] is connection:
            self.connections[number] = None
            self.ended.append(Ending(connection, reason_code, why))
            if not self.is_open:
                self.wake()

    def store(self, session: Session, then: Then) -> None:
        """Store a connected session once, however often it changes in the turn.

        ``then`` is called when it is there, or with the reason why not; not if its client leaves
        before the turn ends, as it is stored by that.
        """
        self.stored.setdefault(session, []).append(then)
        if not self.is_open:
            self.wake()

    def handle_again(self, connection: Connection, packets: list[Packet]) -> None:
        """Have packets of one connection handled that have waited, unless it ends before."""
        self.again.append((connection, packets))
        if not self.is_open:
            self.wake()
