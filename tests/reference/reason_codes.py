"""docs/reference/reason-codes.md: what the gateway's MQTT reason codes mean and what to do.

Owns: that page and its texts, and finding the codes that the gateway's sources send.
Must not touch: when a code is sent.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final, NamedTuple

from motelog.gateway.mqtt.errors import GatewayError
from motelog.gateway.mqtt.packet_types import ReasonCode
from tests.reference.markdown import table
from tests.support.repository import ROOT

_HEAD: Final = """\
# MQTT reason codes

Each reason code that the gateway sends, in which packet, when, and what to do about it. Codes
that are not here it never sends. A client that has not set Request Problem Information to 0 gets
a Reason String with each refusal: it says which limit or rule it was. The gateway's log has the
same words with the client identifier.

**MQTT 3.1 and 3.1.1** have fewer ways to say no. CONNACK has return codes: 1 for 0x84, 2 for
0x85, 3 for 0x88 and 0x97; for other codes the connection is closed without one. SUBACK has 0x80
for each refusal. For a publish that is refused, and wherever MQTT 5 gets DISCONNECT, the
connection is closed. A publish at QoS 0 is never answered: the log and the counter
`publishes_refused` are all that tells.

This page is written by `python -m tests.reference`.
"""

_MAPPING: Final = "[mqtt-mapping.md](../mqtt-mapping.md)"
#: Codes that come of a value, so that no source names them.
GRANTED: Final = {ReasonCode.GRANTED_QOS_1, ReasonCode.GRANTED_QOS_2}


class Row(NamedTuple):
    packets: str
    when: str
    remedy: str


ROWS: Final[dict[ReasonCode, Row]] = {
    ReasonCode.SUCCESS: Row(
        "CONNACK, AUTH, PUBACK, PUBREC, PUBREL, PUBCOMP, UNSUBACK; in SUBACK: QoS 0 granted",
        "It is done. A PUBACK or PUBREC means that the log has the message"
        ' (with `flush = "sync"`: that it is on the disk)',
        "",
    ),
    ReasonCode.GRANTED_QOS_1: Row("SUBACK", "Subscribed with QoS 1", ""),
    ReasonCode.GRANTED_QOS_2: Row("SUBACK", "Subscribed with QoS 2", ""),
    ReasonCode.NO_SUBSCRIPTION_EXISTED: Row(
        "UNSUBACK", "The session has no subscription with that filter", "Nothing; it is gone"
    ),
    ReasonCode.CONTINUE_AUTHENTICATION: Row(
        "AUTH", "The client has begun SCRAM-SHA-256 and must now prove its password", ""
    ),
    ReasonCode.RE_AUTHENTICATE: Row(
        "AUTH of a client", "A connected client authenticates again; the gateway never asks", ""
    ),
    ReasonCode.UNSPECIFIED_ERROR: Row(
        "CONNACK, DISCONNECT; SUBACK of MQTT 3",
        "A fault of the gateway at a packet of this client. SUBACK of MQTT 3: the filter is"
        " refused; MQTT 3 has no other code",
        "Report it with the gateway's log. SUBACK: read the log, or try with MQTT 5, which says"
        " why",
    ),
    ReasonCode.MALFORMED_PACKET: Row(
        "CONNACK, DISCONNECT",
        "The bytes are not MQTT: a wrong length, text that is not UTF-8, a reserved bit",
        "A fault of the client's library, or not an MQTT client",
    ),
    ReasonCode.PROTOCOL_ERROR: Row(
        "CONNACK, DISCONNECT",
        "A packet that is not allowed here: a second CONNECT, a property twice, packet identifier"
        " 0. A first packet that is not CONNECT gets no answer",
        "A fault of the client's library",
    ),
    ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR: Row(
        "PUBACK, PUBREC, DISCONNECT",
        "The log cannot take the message or the session at the moment: a slow disk, a broker"
        " that is away or refuses. The message may be stored all the same. DISCONNECT: a broker has"
        " not answered, so it is unknown whether it has the message",
        "Publish again; after DISCONNECT clients do so by themselves. If it lasts:"
        " `/health/ready` and the log say what is wrong",
    ),
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: Row(
        "CONNACK", "Neither MQTT 3.1, 3.1.1 nor 5.0", "Have the client speak one of these"
    ),
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: Row(
        "CONNACK",
        "The client identifier is longer than `client_id_bytes_max`, holds a control character,"
        " begins with `$share/`, or is empty where MQTT 3 does not allow that",
        "Choose another one",
    ),
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: Row(
        "CONNACK",
        "Unknown user, wrong password, or a refused token",
        "`motelog user passwd` sets a password; the gateway's log says what is wrong with a token",
    ),
    ReasonCode.NOT_AUTHORIZED: Row(
        "CONNACK, PUBACK, PUBREC, SUBACK, DISCONNECT",
        "A client has no login, or no right to the topic, to its will or to another user's session;"
        " a login has ended, or rules have changed. Without rules: the filter"
        " begins with `$`, but not with `$SYS/`, `$share/` or `$stream/`",
        "`motelog acl check` says which rule decides ([access.md](../access.md))",
    ),
    ReasonCode.SERVER_UNAVAILABLE: Row(
        "CONNACK",
        "`connections_max` other clients are connected, or stored sessions cannot be found at the"
        " moment",
        "Connect again later, at growing intervals; raise `connections_max`",
    ),
    ReasonCode.SERVER_BUSY: Row(
        "CONNACK, DISCONNECT",
        "The log cannot provide at the moment what the client needs: a group of a shared"
        " subscription, a QoS 2 message to send again; or this gateway was declared lost."
        " In CONNACK: too many logins wait, or a file of logins and rights cannot be read",
        "Connect again; sessions go on",
    ),
    ReasonCode.SERVER_SHUTTING_DOWN: Row(
        "DISCONNECT", "The server is being stopped", "Connect again later; sessions are stored"
    ),
    ReasonCode.BAD_AUTHENTICATION_METHOD: Row(
        "CONNACK",
        "The client asks for an enhanced authentication other than SCRAM-SHA-256, or there is no"
        " password file",
        "Connect without an Authentication Method, or with SCRAM-SHA-256"
        " ([access.md](../access.md))",
    ),
    ReasonCode.KEEP_ALIVE_TIMEOUT: Row(
        "DISCONNECT",
        "No packet within one and a half times the keep alive",
        "Have the client send PINGREQ in time, or choose a longer keep alive",
    ),
    ReasonCode.SESSION_TAKEN_OVER: Row(
        "DISCONNECT",
        "Another connection came with the same client identifier",
        "If the client did not reconnect itself, two have the same identifier: give each its own",
    ),
    ReasonCode.TOPIC_FILTER_INVALID: Row(
        "SUBACK, DISCONNECT",
        "The filter is longer than `topic_bytes_max`, has more than 128 levels, or its"
        " `stream-offset` cannot be read (SUBACK); it is not a topic filter (DISCONNECT)",
        "Correct the filter",
    ),
    ReasonCode.TOPIC_NAME_INVALID: Row(
        "PUBACK, PUBREC, CONNACK, DISCONNECT",
        "The topic name begins with `$`, is longer than `topic_bytes_max`, or asks for a delay that"
        " cannot be read; in CONNACK it is the will's; one with a wildcard or a control character"
        " ends the connection",
        f"Choose another name: {_MAPPING} has the rules",
    ),
    ReasonCode.PACKET_IDENTIFIER_NOT_FOUND: Row(
        "PUBREL, PUBCOMP",
        "The QoS 2 exchange is over, or never began",
        "Nothing, after a reconnect; otherwise a fault of the client's library",
    ),
    ReasonCode.RECEIVE_MAXIMUM_EXCEEDED: Row(
        "DISCONNECT",
        "More unacknowledged QoS 1 and 2 publishes than the Receive Maximum of CONNACK"
        " (`receive_maximum`)",
        "Have the client keep to it, or raise it",
    ),
    ReasonCode.TOPIC_ALIAS_INVALID: Row(
        "DISCONNECT",
        "A topic alias of 0, or above the Topic Alias Maximum of CONNACK (`topic_alias_max`)",
        "Have the client keep to it, or raise it",
    ),
    ReasonCode.PACKET_TOO_LARGE: Row(
        "DISCONNECT, CONNACK",
        "A packet above the Maximum Packet Size of CONNACK (`packet_bytes_max`), or an answer above"
        " that of the client. A CONNECT above `connect_bytes_max` is closed without an answer",
        "Publish less at once, or raise the limit; or have the client allow larger packets",
    ),
    ReasonCode.QUOTA_EXCEEDED: Row(
        "PUBACK, PUBREC, SUBACK, CONNACK, DISCONNECT",
        "PUBACK, PUBREC: the disk is over its limit; there are as many retained messages as"
        " `retained_count_max`, `retained_client_count_max` or `retained_bytes_max` allows; topic"
        " name and properties do not fit into a record (some 24 kB). SUBACK: more than"
        " `subscriptions_max`. CONNACK: a will payload above `will_bytes_max`. DISCONNECT: too many"
        " filters or properties in a packet, too many SUBSCRIBE at once, or all connections"
        " together hold more than `memory_bytes_max`",
        "The Reason String says which. A full disk: `/health/ready` says how full; make room, or"
        " keep messages for a shorter time (`retention_hours`)",
    ),
    ReasonCode.ADMINISTRATIVE_ACTION: Row(
        "DISCONNECT",
        "An operator has ended the session (`motelog session end`)",
        "Ask the operator",
    ),
    ReasonCode.CONNECTION_RATE_EXCEEDED: Row(
        "CONNACK",
        "Too many logins of this user, or from this address, have failed",
        "Wait for the time in the Reason String; check the password",
    ),
}


def page() -> str:
    rows = [
        (f"0x{code:02X}", code.name.replace("_", " ").capitalize().replace("qos", "QoS"), *row)
        for code, row in sorted(ROWS.items())
    ]
    head = ("code", "name", "packet", "when", "what to do")
    return "\n".join([_HEAD, *table(head, rows)])


def sent() -> set[ReasonCode]:
    """Return the codes that the gateway's sources name, and those of its errors."""
    found = {ReasonCode(error.reason_code) for error in _errors(GatewayError)}
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        if path.name != "packet_types.py":
            names = _named(ast.parse(path.read_text(encoding="utf-8")))
            found.update(ReasonCode[name] for name in names)
    return found


def _errors(kind: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _errors(below)


def _named(tree: ast.AST) -> Iterator[str]:
    """Yield each ``ReasonCode.NAME``, but not the table of MQTT 3's return codes."""
    if isinstance(tree, ast.AnnAssign) and ast.unparse(tree.target) == "_RETURN_CODES":
        return
    if isinstance(tree, ast.Attribute) and ast.unparse(tree.value) == "ReasonCode":
        yield tree.attr
    for child in ast.iter_child_nodes(tree):
        yield from _named(child)
