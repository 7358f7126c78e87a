"""Sparkplug B for tests: nearly right payloads made of bytes, and real ones by Google's encoder.

Owns: the messages of Sparkplug's protocol as far as tests need them (Eclipse Sparkplug 3.0.0,
section 6.4), other fields than Sparkplug's under its names.
"""

from __future__ import annotations

import random
import struct
from functools import cache
from typing import Any

from motelog.spark.payload_fields import Field, Kind, numbered
from motelog.spark.sparkplug_fields import SPARKPLUG_FIELDS
from tests.support.msgpack_payloads import damaged

SPARKPLUG_NODES = numbered(SPARKPLUG_FIELDS)
#: Names of Sparkplug with other types: what no schema may have, a parser must endure.
_NAMES = ("timestamp", "seq", "uuid", "body", "metrics")
ODD_NODES = [
    numbered([Field(name, kind, children) for name in _NAMES])
    for kind, children in (
        *((kind, ()) for kind in Kind if kind > Kind.LIST and kind is not Kind.DECIMAL),
        (Kind.LIST, (Field("element", Kind.INT),)),
        (Kind.STRUCT, (Field("name", Kind.STRING),)),
        (Kind.LIST, (Field("element", Kind.STRUCT, (Field("name", Kind.INT),)),)),
        (Kind.LIST, (Field("element", Kind.STRUCT, (Field("double_value", Kind.FLOAT),)),)),
        (Kind.LIST, (Field("element", Kind.STRUCT, (Field("", Kind.LONG),)),)),
    )
]
_WHOLES = (
    0, 1, 2, 3, 127, 128, 255, 256, 32767, 32768, 0x7FFFFFFF, 0x80000000, 0xFFFFFF80, 0xFFFFFFFF,
    1 << 32, 1700000000000, 253402300799999, 253402300800000, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
    (1 << 70) - 1,
)  # fmt: skip
_BYTES = (b"", b"a", "tank/\u00e9".encode(), b"\x08\x02", b"b", b"c", b"d", b"\xff", bytes(9))


def varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(0x80 | value & 0x7F)
        value >>= 7
    return bytes((*data, value))


def tagged(number: int, wire: int, value: Any) -> bytes:
    """Return a field; bytes of wire type 2 get their length."""
    data = varint(value) if isinstance(value, int) else value
    return varint(number << 3 | wire) + (varint(len(data)) if wire == 2 else b"") + data


def random_sparkplug(chance: random.Random) -> bytes:
    """Return a payload of some metrics, mostly right, sometimes damaged."""
    fields = [_random_field(chance, "02022") for _ in range(chance.randrange(4))]
    fields += [tagged(2, 2, _random_metric(chance)) for _ in range(chance.randrange(5))]
    chance.shuffle(fields)
    return damaged(chance, b"".join(fields))


def _random_metric(chance: random.Random) -> bytes:
    numbers = sorted(chance.sample(range(1, 10), chance.randrange(5)))
    wires = "2000000220051022222"
    fields = [_random_field(chance, wires, number) for number in numbers]
    fields += [_random_field(chance, wires, chance.randrange(10, 20))]
    if chance.random() < 0.2:
        chance.shuffle(fields)
    if chance.random() < 0.1:
        fields.append(_random_field(chance, wires))
    return damaged(chance, b"".join(fields)) if chance.random() < 0.1 else b"".join(fields)


def _random_field(chance: random.Random, wires: str, number: int = 0) -> bytes:
    number = number or chance.randrange(1, len(wires) + 3)
    wire = int(wires[number - 1]) if number <= len(wires) else chance.choice((0, 1, 2, 5))
    if chance.random() < 0.003:
        wire = chance.randrange(8)
    match wire:
        case 0:
            return tagged(number, 0, chance.choice(_WHOLES[: chance.choice((4, 12, 30))]))
        case 1:
            double = chance.choice([0.0, 0.1, -1.5, float("inf"), float("nan"), 1e300])
            return tagged(number, 1, struct.pack("<d", double))
        case 5:
            return tagged(number, 5, struct.pack("<f", chance.choice([0.0, 0.1, float("-inf")])))
        case _:
            return tagged(number, wire, chance.choice(_BYTES))


@cache
def sparkplug_messages() -> tuple[type[Any], type[Any]]:
    """Return the classes of a payload and of a DataSet, as Google's library makes them."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    scalar = {
        "uint32": kinds.TYPE_UINT32, "uint64": kinds.TYPE_UINT64, "float": kinds.TYPE_FLOAT,
        "double": kinds.TYPE_DOUBLE, "bool": kinds.TYPE_BOOL, "string": kinds.TYPE_STRING,
        "bytes": kinds.TYPE_BYTES,
    }  # fmt: skip
    file = descriptor_pb2.FileDescriptorProto(
        name="sparkplug_b.proto", package="org.eclipse.tahu.protobuf", syntax="proto2"
    )

    def add(parent: Any, names: str) -> Any:
        message = parent.add(name=names.partition(":")[0])
        for words in names.partition(":")[2].split(","):
            kind, name, number = words.split()
            field = message.field.add(name=name, number=int(number), label=kinds.LABEL_OPTIONAL)
            if kind in scalar:
                field.type = scalar[kind]
            else:
                field.type = kinds.TYPE_MESSAGE
                field.type_name = f".{file.package}.Payload.{kind.removeprefix('*')}"
            if kind.startswith("*"):
                field.label = kinds.LABEL_REPEATED
            elif "_value" in name:
                field.oneof_index = 0
        return message

    payload = add(
        file.message_type,
        "Payload:uint64 timestamp 1,*Metric metrics 2,uint64 seq 3,string uuid 4,bytes body 5",
    )
    add(payload.nested_type, "DataSet:uint64 num_of_columns 1")
    add(payload.nested_type, "PropertySet:uint64 odd 3")
    metric = add(
        payload.nested_type,
        "Metric:string name 1,uint64 alias 2,uint64 timestamp 3,uint32 datatype 4,"
        "bool is_historical 5,bool is_transient 6,bool is_null 7,PropertySet properties 9,"
        "uint32 int_value 10,uint64 long_value 11,float float_value 12,double double_value 13,"
        "bool boolean_value 14,string string_value 15,bytes bytes_value 16,"
        "DataSet dataset_value 17",
    )
    metric.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName(f"{file.package}.Payload")
    classes = message_factory.GetMessageClass(found)
    return classes, classes.DataSet
