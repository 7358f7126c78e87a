r"""``motelog sub -F``: mosquitto_sub's format strings for received messages.

Owns: what each sequence means. Must not touch: the connection, standard output.
Spec: mosquitto_sub(1), "Output format".

    %[flags][width][.most]X    a part of the message; flags: - left, 0 zeros instead of blanks
    @X                         strftime's %X of the time of arrival; @N nanoseconds, @@ one @
    \X                         0 a e n r t v and a backslash
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any, Final

from motelog.cli.mqtt_client import Received
from motelog.gateway.mqtt.packet_types import Properties

_NANOSECONDS: Final = 1_000_000_000

# Bytes of one sequence, for a message that came at a time (nanoseconds since 1970).
Piece = Callable[[Received, int], bytes]


class MessageFormatError(ValueError):
    """The format string contains an unknown or incomplete sequence."""


class NoJsonError(ValueError):
    """%J needs a JSON payload, and this payload is not JSON."""


class MessageFormat:
    """A format string, parsed once. MessageFormatError says what is wrong with it."""

    def __init__(self, text: str, *, is_pretty: bool = False) -> None:
        self._pieces = [_piece(match, is_pretty) for match in _SEQUENCE.finditer(text)]

    def render(self, message: Received, at_ns: int) -> bytes:
        """Return what to print; NoJsonError if it contains %J and the payload is not JSON."""
        return b"".join(piece(message, at_ns) for piece in self._pieces)


def payload_fields(name: str, payload: bytes) -> dict[str, str | None]:
    """Return the JSON members for a body: as text, or in base64 if it is not UTF-8."""
    try:
        return {name: payload.decode()}
    except UnicodeDecodeError:
        import base64

        return {name: None, f"{name}_base64": base64.b64encode(payload).decode()}


_SEQUENCE: Final = re.compile(
    r"%(?P<flags>[-0]*)(?P<width>\d*)(?:\.(?P<most>\d+))?(?P<part>.?)"
    r"|@(?P<time>.?)|\\(?P<escape>.?)|(?P<text>[^%@\\]+)",
    re.DOTALL,
)
_ESCAPES: Final = {
    "\\": b"\\", "0": b"\0", "a": b"\a", "e": b"\x1b",
    "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v",
}  # fmt: skip

# What strftime supports on every system that Python runs on, and glibc's additions.
_TIMES: Final = frozenset("aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ")


def _number(value: int | None) -> bytes:
    return b"" if value is None else str(value).encode()


def _text(value: str | None) -> bytes:
    return (value or "").encode()


_PARTS: Final[dict[str, Callable[[Received], bytes]]] = {
    "A": lambda message: _number(message.properties.topic_alias),
    "C": lambda message: _text(message.properties.content_type),
    "E": lambda message: _number(message.properties.message_expiry_interval_s),
    "F": lambda message: _number(message.properties.payload_format_indicator),
    "l": lambda message: _number(len(message.payload)),
    "m": lambda message: _number(message.packet_id),
    "p": lambda message: message.payload,
    "R": lambda message: _text(message.properties.response_topic),
    "S": lambda message: b" ".join(map(_number, message.properties.subscription_identifiers)),
    "t": lambda message: _text(message.topic),
    "x": lambda message: message.payload.hex().encode(),
    "X": lambda message: message.payload.hex().upper().encode(),
}
_PADDED_WITH_ZEROS: Final = frozenset("AEFlmSXx")
_CUT: Final = frozenset("CIRt")

# These take no flags and no width.
_PLAIN: Final[dict[str, Piece]] = {
    "%": lambda message, at_ns: b"%",
    "D": lambda message, at_ns: message.properties.correlation_data or b"",
    "P": lambda message, at_ns: b" ".join(
        f"{name}:{value}".encode() for name, value in message.properties.user_properties
    ),
    "q": lambda message, at_ns: _number(message.qos),
    "r": lambda message, at_ns: _number(int(message.retain)),
    "U": lambda message, at_ns: b"%d.%09d" % divmod(at_ns, _NANOSECONDS),
}


def _piece(match: re.Match[str], is_pretty: bool) -> Piece:
    text = match["text"]
    if text is not None:
        literal = text.encode(errors="surrogateescape")
        return lambda message, at_ns: literal
    if "" in (match["part"], match["time"], match["escape"]):
        raise MessageFormatError(f"{match[0]!r} is incomplete")
    if match["escape"] is not None:
        return _escape(match["escape"])
    if match["time"] is not None:
        return _time(match["time"])
    return _part(match, is_pretty)


def _escape(letter: str) -> Piece:
    if letter not in _ESCAPES:
        raise MessageFormatError(f"'\\{letter}' has no meaning: use \\\\ for a backslash")
    value = _ESCAPES[letter]
    return lambda message, at_ns: value


def _time(letter: str) -> Piece:
    if letter == "@":
        return lambda message, at_ns: b"@"
    if letter == "N":
        return lambda message, at_ns: b"%09d" % (at_ns % _NANOSECONDS)
    if letter not in _TIMES:
        raise MessageFormatError(f"'@{letter}' has no meaning: use @@ for an @")
    return lambda message, at_ns: _strftime(f"%{letter}", at_ns).encode()


def _part(match: re.Match[str], is_pretty: bool) -> Piece:
    letter, flags, most = match["part"], match["flags"], match["most"]
    if letter in "jJ":
        return lambda message, at_ns: _json(message, at_ns, letter == "J", is_pretty)
    if letter in _PLAIN:
        return _PLAIN[letter]
    pad = b"0" if "0" in flags and letter in _PADDED_WITH_ZEROS else b" "
    width = int(match["width"] or 0)
    cut = int(most) if most is not None and letter in _CUT else None

    def padded(value: bytes) -> bytes:
        value = value if cut is None else value.decode()[:cut].encode()
        missing = pad * (width - len(value.decode(errors="replace")))
        return value + b" " * len(missing) if "-" in flags else missing + value

    if letter == "I":
        return lambda message, at_ns: padded(_strftime("%Y-%m-%dT%H:%M:%S%z", at_ns).encode())
    if letter not in _PARTS:
        raise MessageFormatError(f"'%{letter}' has no meaning: use %% for a percent sign")
    value_of = _PARTS[letter]
    return lambda message, at_ns: padded(value_of(message))


def _strftime(text: str, at_ns: int) -> str:
    return time.strftime(text, time.localtime(at_ns // _NANOSECONDS))


def _json(message: Received, at_ns: int, holds_json: bool, is_pretty: bool) -> bytes:
    second = _strftime("%Y-%m-%dT%H:%M:%S", at_ns)
    value: dict[str, Any] = {
        "tst": f"{second}.{at_ns % _NANOSECONDS // 1000:06d}Z{_strftime('%z', at_ns)}",
        "topic": message.topic,
        "qos": message.qos,
        "retain": int(message.retain),
        "payloadlen": len(message.payload),
    }
    if message.packet_id:
        value["mid"] = message.packet_id
    properties = json_properties(message.properties)
    if properties:
        value["properties"] = properties
    if holds_json:
        try:
            value["payload"] = json.loads(message.payload)
        except ValueError as exc:
            raise NoJsonError(f"the payload is not JSON: topic {message.topic}") from exc
    else:
        value |= payload_fields("payload", message.payload)
    indent, colon = ("\t", ":\t") if is_pretty else (None, ":")
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=(",", colon)).encode()


def json_properties(properties: Properties) -> dict[str, Any]:
    """Return a PUBLISH's properties under mosquitto's names."""
    found: dict[str, Any] = {
        "payload-format-indicator": properties.payload_format_indicator,
        "message-expiry-interval": properties.message_expiry_interval_s,
        "content-type": properties.content_type,
        "response-topic": properties.response_topic,
        "topic-alias": properties.topic_alias,
    }
    if properties.correlation_data is not None:
        found |= payload_fields("correlation-data", properties.correlation_data)
    if properties.subscription_identifiers:
        found["subscription-identifier"] = list(properties.subscription_identifiers)
    if properties.user_properties:
        found["user-properties"] = dict(properties.user_properties)
    return {name: value for name, value in found.items() if value is not None}
