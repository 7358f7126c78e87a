"""A turn: one pass of a gateway from input to output, and the values that are decided on the way.

Owns: the values of the current turn, and its time. Must not touch: what the values mean.
The parts that decide put values here. ``publish.commit`` appends and answers them, and ``listener``
does the rest. Values go one way: no part calls back the part that called it.

    receive           decide               append               settle and send
    the reactor,  --> publishing,     -->  copies, marks,  -->  PUBACK, PUBREC, PINGRESP
    a second,         exchanges,           publishes:           ends of connections
    a ticket,         subscribing,         one batch            packets that have waited
    other gateways    logins               session states:      receivers with room again
                                           one batch

Nearly everything in a gateway happens in a turn. A turn begins when the reactor has a batch, once a
second, when a ticket settles, and when other gateways have written records. A turn never waits:
other tasks run only between two turns, and never see a change half done. A value can also be put
here between two turns, for example when a remote log answers. Then a turn begins soon (``wake``).
Requests of an operator, and the rewriting of old records, run between two turns.

The steps of a turn for a batch of the reactor (``listener.handle_turn``):

1. End connections and handle packets that were put here between turns.
2. Add new connections, and handle the packets of the batch in the order in which they came. This
   puts messages, marks and answers here.
3. Append the messages. The answers wait for the ticket of the append (``publish.commit``). Then
   handle the streams that have a fault or were closed.
4. End connections, handle packets that have waited, serve receivers with room again, store
   sessions. Repeat this until nothing is left.
5. Deliver new messages of the log to their receivers (``delivery``).

Any other turn (``listener.during``) does one piece of work, and then appends and continues as in
steps 3 and 4.

The order within a turn, and the reasons:

- Publishes are collected until a packet such as SUBSCRIBE or DISCONNECT comes, a publish is
  refused, or the packets end. They are then appended together. So each packet takes effect after
  the packets before it [MQTT-4.6.0]. Acknowledgements and PINGREQ do not end the collecting, so
  most turns need only one append.
- In an append, the mark of a QoS 2 message and the copy of a retained one come before the message.
  If a crash cuts the append between them, a mark without its message is left. The gateway then
  searches the log for the message (``publish.look_up``).
- If the log has several brokers, mark, copy and message may be at different ones. Then marks and
  copies are appends of their own, and the messages that have them are sent when the log has them.
  Each message has a ticket of its own, so a broker that is away costs its own messages alone.
- An answer leaves when its ticket has settled, and so after the append. PINGRESP also leaves after
  the append, as it says that the log has taken all earlier publishes, but it does not wait for the
  ticket.
- A connection is closed after it has been sent the answers whose tickets have settled by then.
  ``end`` removes the connection from the table at once, so the rest of its packets are ignored. Its
  session is stored when the listener closes the connection.
- Receivers with room again are served after connections have ended, when it is known which of the
  receivers are still connected.

Session states were hard to place. They are a batch of their own, so that the log can refuse a state
that is too large without refusing the publishes of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any, NamedTuple, TypeAlias

from motelog.gateway.log.log_port import Then
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.gateway.sessions.connect_rules import Accepted, Refused
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.session import Session
from motelog.gateway.state.retained_unread import Written
from motelog.gateway.state.stored import Mark, Received

#: A message for the log, as ``core.records.append.AppendMessage``: queue, payload, properties, ...
Message: TypeAlias = tuple[Any, ...]
#: A packet as the frames kernel splits it: connection, first byte, topic name, payload or body,
#: packet identifier, properties or the kernel's findings.
Packet: TypeAlias = tuple[Any, ...]

#: (connection, packet identifier) of each packet to be answered.
Acks: TypeAlias = list[tuple[int, int]]


class NotFound(Enum):
    """Answers of MQTT 5 to packets whose exchange is not known."""

    PUBREL = auto()
    PUBCOMP = auto()


AnswerKind: TypeAlias = PacketType | NotFound


class Ending(NamedTuple):
    """A connection that has to end, and the reason that is sent to its client."""

    connection: Connection
    reason_code: int
    why: str


class Changed(NamedTuple):
    """The filters of a session that a turn has changed, and who waits until the log has them."""

    filters: dict[str, None]
    thens: list[Then]


class Turn:
    """The current turn of one gateway. Lists that a loop refers to are cleared in place."""

    def __init__(
        self, connections: list[Connection | None], *, wake: Callable[[], None] = lambda: None
    ) -> None:
        """``wake`` makes a turn begin soon; called if a value is put here between two turns."""
        self.connections = connections
        self.wake = wake
        self.is_open = False
        #: When the turn began (wall clock, monotonic clock), and when its packets were read.
        self.now_ms = self.monotonic_ms = 0
        self.began_ns = 0
        #: Publishes to append; the answers to those at QoS 1 and at QoS 2.
        self.messages: list[Message] = []
        self.acks: Acks = []
        self.recs: Acks = []
        #: Appended before the publishes: marks of QoS 2 messages, copies of retained messages.
        #: The places in ``messages`` of those with a mark, and of those with a copy.
        self.marks: list[Mark] = []
        self.marked: list[int] = []
        self.retained: list[Written] = []
        self.copied: list[int] = []
        #: QoS 2 messages marked in this turn; exchanges of which the client has sent the message
        #: again, with the answers.
        self.taken: list[tuple[Session, Received]] = []
        self.taken_again: list[tuple[tuple[str, int], tuple[int, int]]] = []
        #: QoS 2 messages that the log already has, of sessions that end with their connection.
        self.repeated: Acks = []
        #: Answers to steps of QoS 2 exchanges. The journal has collected the marks of these steps.
        self.steps: dict[AnswerKind, Acks] = {}
        #: Connections that have sent PINGREQ.
        self.pings: list[int] = []
        #: Connection number -> the decision about a CONNECT of this turn.
        self.decided: dict[int, Accepted | Refused] = {}
        self.ended: list[Ending] = []
        #: Packets that have waited and are to be handled now, with the connection that sent them.
        self.again: list[tuple[Connection, list[Packet]]] = []
        #: Connected sessions whose filters have changed, and must be stored.
        self.stored: dict[Session, Changed] = {}
        #: Sessions that have room in their window or socket again.
        self.have_room: dict[Session, None] = {}

    def end(self, connection: Connection, reason_code: int, why: str) -> None:
        """End a connection with a reason code, unless it has ended. MQTT 3 has no reason codes."""
        number = connection.number
        if connection.session is not None and self.connections[number] is connection:
            self.connections[number] = None
            self.ended.append(Ending(connection, reason_code, why))
            if not self.is_open:
                self.wake()

    def store(self, session: Session, filters: Iterable[str], then: Then) -> None:
        """Store a connected session once, however often it changes in the turn.

        ``filters`` have been added, replaced or removed. ``then`` is called when the log has the
        session, or with the error. It is not called if the client leaves before the turn ends,
        because leaving stores the session.
        """
        changed = self.stored.get(session)
        if changed is None:
            changed = self.stored[session] = Changed({}, [])
        changed.filters.update(dict.fromkeys(filters))
        changed.thens.append(then)
        if not self.is_open:
            self.wake()

    def handle_again(self, connection: Connection, packets: list[Packet]) -> None:
        """Handle packets of one connection that have waited, unless the connection ends first."""
        self.again.append((connection, packets))
        if not self.is_open:
            self.wake()
