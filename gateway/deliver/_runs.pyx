# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Kernel of gateway.deliver.runs; mirrors _runs_py.py, answer for answer.

Schema: records are BriefRecords; topic name -> receiver -> options, or the same options for all.
Preconditions: none; the types of all input are checked. Apart from the comparison of receivers, no
call in the loop runs the caller's code. The GIL is held: the work is on Python objects.
Measured 2026-11-23, busy 2-core x86-64, 100 messages of QoS 1 to a window of 100: 0.23 us for each,
1.48 us in the reference.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Contains, PyDict_SetItem, PyDict_Size
from cpython.tuple cimport PyTuple_GET_SIZE
from libc.stdint cimport int64_t
from libc.string cimport memcmp

from motelog.core.message import SYS_FLAG_COMPRESSED as _SYS_FLAG_COMPRESSED
from motelog.gateway.deliver.outgoing import (
    AT_MOST_ONCE as _AT_MOST_ONCE, EXACTLY_ONCE as _EXACTLY_ONCE, V5_PROPERTIES as _V5_PROPERTIES,
)
from motelog.gateway.mqtt.frames import PUBLISH_OVERHEAD_BYTES as _OVERHEAD_BYTES
from motelog.gateway.sessions.inflight import PACKET_ID_MAX as _PACKET_ID_MAX, flight_of
from motelog.gateway.sessions.subscriptions import PARTICULAR as _PARTICULAR, QOS_MASK as _QOS_MASK

cdef extern from "string.h":
    void *memmem(const void *text, size_t text_bytes, const void *wanted, size_t wanted_bytes)

cdef int64_t COMPRESSED = _SYS_FLAG_COMPRESSED
cdef int64_t PARTICULAR = _PARTICULAR
cdef int64_t QOS_MASK = _QOS_MASK
cdef bytes AT_MOST_ONCE = _AT_MOST_ONCE
cdef bytes EXACTLY_ONCE = _EXACTLY_ONCE
cdef bytes V5_PROPERTIES = _V5_PROPERTIES
cdef Py_ssize_t OVERHEAD_BYTES = _OVERHEAD_BYTES
cdef int PACKET_ID_MAX = _PACKET_ID_MAX
cdef int64_t OFFSET_MAX = (1 << 48) - 1


def take_run(
    list records not None, Py_ssize_t begin, wants, receiver, list parts not None,
    dict flights not None, Py_ssize_t limit, int last_packet_id, queue_number, int plain_qos,
    int first_byte, int64_t aged_ms, int64_t bytes_taken, int64_t bytes_high,
):
    cdef Py_ssize_t position = begin
    cdef dict matches = None
    cdef tuple record
    cdef bytes name, body, properties
    cdef bytes last_name = None
    cdef int64_t queue_offset, sys_flag, store_ms
    cdef int64_t options = 0
    cdef int qos, packet_id
    if begin < 0 or limit < 0 or limit > PACKET_ID_MAX or not 0 <= last_packet_id <= PACKET_ID_MAX:
        raise ValueError("begin, limit or packet identifier out of range")
    if type(wants) is dict:
        matches = wants
    else:
        options = wants
    place = flight_of(queue_number, 0, 0)
    while position < len(records):
        record = records[position]
        if record is None or PyTuple_GET_SIZE(record) != 8:
            raise ValueError("a record has eight parts")
        # A number of any other type could run code that changes the lists.
        if type(record[0]) is not int or type(record[5]) is not int or type(record[6]) is not int:
            raise TypeError("queue offset, flags and store time are numbers")
        queue_offset, name, properties, body = record[0], record[1], record[3], record[4]
        sys_flag, store_ms = record[5], record[6]
        if properties is None or body is None:
            raise TypeError("properties and body are bytes")
        if not 0 <= queue_offset <= OFFSET_MAX:
            raise ValueError(f"{queue_offset} is not a queue offset")
        if name is None:
            break
        # Consecutive records often have the same topic name.
        if matches is not None and not (last_name is not None and _same(name, last_name)):
            matched = matches.get(name)
            if matched is None:
                break
            found = (<dict?> matched).get(receiver)
            options = -1 if found is None else found
            last_name = name
        if options < 0:
            position += 1
            continue
        if sys_flag & COMPRESSED or store_ms < aged_ms:
            break
        qos = _qos(properties)
        if qos > <int>(options & QOS_MASK):
            qos = <int>(options & QOS_MASK)
        if options & PARTICULAR or qos > plain_qos or _has(properties, V5_PROPERTIES):
            break
        if bytes_taken > bytes_high:
            break
        packet_id = 0
        if qos:
            if PyDict_Size(flights) >= limit:
                break
            packet_id = last_packet_id
            while True:  # ends: fewer than ``limit`` of the identifiers are taken
                packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
                number = packet_id
                if not PyDict_Contains(flights, number):  # [MQTT-2.2.1-4]
                    break
            PyDict_SetItem(flights, number, place + (queue_offset << 2 | qos))
            last_packet_id = packet_id
            parts.append((name, body, first_byte | qos << 1, number, None))
        else:
            parts.append((name, body, first_byte, 0, None))
        bytes_taken += PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(body) + OVERHEAD_BYTES
        position += 1
    return position, last_packet_id, bytes_taken


cdef inline bint _same(bytes one, bytes other) noexcept:
    return PyBytes_GET_SIZE(one) == PyBytes_GET_SIZE(other) and (
        memcmp(PyBytes_AS_STRING(one), PyBytes_AS_STRING(other), PyBytes_GET_SIZE(one)) == 0
    )


cdef inline int _qos(bytes properties) noexcept:
    """Return the QoS at which a message was published; 1 for a native producer's message."""
    if _has(properties, AT_MOST_ONCE):
        return 0
    return 2 if _has(properties, EXACTLY_ONCE) else 1


cdef inline bint _has(bytes text, bytes wanted) noexcept:
    return memmem(
        PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text),
        PyBytes_AS_STRING(wanted), PyBytes_GET_SIZE(wanted),
    ) != NULL
