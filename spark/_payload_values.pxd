# cython: boundscheck=False, wraparound=False, cdivision=True
"""Values of payloads -> entries of columns: text, dates, times, numbers.

Owns: which text is a date, a time or a number, and which number fits which type. Must not touch:
the rest of a payload, Python. Spec: RFC 3339, the number of RFC 8259.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t

from motelog.spark._payload_nodes cimport (
    BINARY, BYTE, DECIMAL, DOUBLE, FLOAT, INT, LONG, NO_MEMORY, OUT_OF_RANGE, SHORT, STRING,
    TIMESTAMP, WRONG_TYPE, Node, Reader, end_entry, wrong,
)
from motelog.spark._stores cimport Text, put_bytes, put_i32, put_i64

cdef extern from *:
    """
    typedef unsigned __int128 motelog_u128;
    #define MOTELOG_TIME_MS_MIN (-62135596800000LL)
    #define MOTELOG_TIME_MS_MAX 253402300799999LL
    """
    ctypedef unsigned long long motelog_u128
    const int64_t TIME_MS_MIN "MOTELOG_TIME_MS_MIN"
    const int64_t TIME_MS_MAX "MOTELOG_TIME_MS_MAX"


cdef struct Number:
    size_t end
    bint negative
    bint is_whole        # no fraction and no exponent
    int digits           # significant ones, as many as ``mantissa`` has; -1: it does not have all
    int64_t power
    uint64_t mantissa


cdef inline bint is_digit(uint8_t byte) noexcept nogil:
    return 0x30 <= byte <= 0x39


cdef inline int two_digits(const uint8_t* p) noexcept nogil:
    """Return the number, or a large one if these are not digits."""
    if not is_digit(p[0]) or not is_digit(p[1]):
        return 10000
    return (p[0] - 0x30) * 10 + (p[1] - 0x30)


cdef inline int64_t days_before(int year, int month, int day) noexcept nogil:
    """Return the days since 1970-01-01 of a date in the Gregorian calendar."""
    cdef int y = year - (month <= 2)
    cdef int era = y // 400
    cdef int of_era = y - era * 400
    cdef int of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    cdef int of_days = of_era * 365 + of_era // 4 - of_era // 100 + of_year
    return <int64_t>era * 146097 + of_days - 719468


cdef inline bint read_date(const uint8_t* p, int64_t* days) noexcept nogil:
    """Read ten bytes such as 2026-11-21."""
    cdef int century = two_digits(p)
    cdef int year = two_digits(p + 2)
    cdef int month = two_digits(p + 5)
    cdef int day = two_digits(p + 8)
    cdef int longest
    if century > 99 or year > 99 or p[4] != 0x2D or p[7] != 0x2D or not 1 <= month <= 12:
        return False
    year += 100 * century
    longest = 31
    if month == 2:
        longest = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    elif month == 4 or month == 6 or month == 9 or month == 11:
        longest = 30
    if year < 1 or not 1 <= day <= longest:
        return False
    days[0] = days_before(year, month, day)
    return True


cdef inline bint read_time(Text text, int64_t* us) noexcept nogil:
    """Read a time in the form of RFC 3339."""
    cdef const uint8_t* p = text.data
    cdef const uint8_t* end = p + text.size
    cdef int64_t days = 0
    cdef int64_t fraction = 0
    cdef int64_t offset_s
    cdef int hour, minute, second, digits
    if text.size < 20 or not read_date(p, &days):
        return False
    if p[10] != 0x54 and p[10] != 0x74 and p[10] != 0x20:
        return False
    hour = two_digits(p + 11)
    minute = two_digits(p + 14)
    second = two_digits(p + 17)
    if hour > 23 or minute > 59 or second > 59 or p[13] != 0x3A or p[16] != 0x3A:
        return False
    us[0] = ((days * 24 + hour) * 60 + minute) * 60 + second
    p += 19
    if p[0] == 0x2E:
        p += 1
        digits = 0
        while p < end and is_digit(p[0]):
            if digits < 6:
                fraction = fraction * 10 + (p[0] - 0x30)
            digits += 1
            p += 1
        if not 1 <= digits <= 9:
            return False
        while digits < 6:
            fraction *= 10
            digits += 1
    if end - p == 1 and (p[0] == 0x5A or p[0] == 0x7A):
        offset_s = 0
    elif end - p == 6 and (p[0] == 0x2B or p[0] == 0x2D) and p[3] == 0x3A:
        hour = two_digits(p + 1)
        minute = two_digits(p + 4)
        if hour > 23 or minute > 59:
            return False
        offset_s = (hour * 60 + minute) * 60
        if p[0] == 0x2D:
            offset_s = -offset_s
    else:
        return False
    us[0] = (us[0] - offset_s) * 1000000 + fraction
    return True


cdef inline bint scan_number(const uint8_t* data, size_t size, size_t at, Number* found) noexcept nogil:
    """Read the number at ``at``; False if there is only a minus."""
    cdef uint64_t mantissa = 0
    cdef int digits = 0
    cdef int64_t power = 0
    cdef int64_t written = 0
    cdef bint power_negative = False
    cdef size_t mark
    found.negative = data[at] == 0x2D
    at += found.negative
    if at >= size or not is_digit(data[at]):
        return False
    found.is_whole = True
    if data[at] == 0x30:
        at += 1
    else:
        while at < size and is_digit(data[at]):
            if digits < 19:
                mantissa = mantissa * 10 + (data[at] - 0x30)
            digits += digits < 20
            at += 1
    if at + 1 < size and data[at] == 0x2E and is_digit(data[at + 1]):
        found.is_whole = False
        at += 1
        while at < size and is_digit(data[at]):
            if digits < 19:
                mantissa = mantissa * 10 + (data[at] - 0x30)
                power -= 1
            # Zeros before the first other digit only determine its place.
            digits += digits < 20 and (digits > 0 or data[at] != 0x30)
            at += 1
    if at < size and (data[at] | 0x20) == 0x65:
        mark = at + 1
        if mark < size and (data[mark] == 0x2B or data[mark] == 0x2D):
            power_negative = data[mark] == 0x2D
            mark += 1
        if mark < size and is_digit(data[mark]):
            found.is_whole = False
            while mark < size and is_digit(data[mark]):
                written = min(written * 10 + (data[mark] - 0x30), <int64_t>1000000)
                mark += 1
            at = mark
            power += -written if power_negative else written
    found.end = at
    found.mantissa = mantissa
    found.power = power
    found.digits = digits if digits < 20 else -1
    return True


cdef inline int put_text(Reader* r, int number, Text text, size_t begin) noexcept nogil:
    """Add text to a string or binary, or its time to a timestamp or date."""
    cdef Node* node = &r.nodes[number]
    cdef int64_t value = 0
    if node.kind == STRING or node.kind == BINARY:
        if put_bytes(&node.data, text.data, text.size) or put_i32(&node.offsets, <int32_t>node.data.size):
            return NO_MEMORY
    elif node.kind == TIMESTAMP:
        if not read_time(text, &value):
            return wrong(r, WRONG_TYPE, number, begin)
        if put_i64(&node.data, value):
            return NO_MEMORY
    else:
        if text.size != 10 or not read_date(text.data, &value):
            return wrong(r, WRONG_TYPE, number, begin)
        if put_i32(&node.data, <int32_t>value):
            return NO_MEMORY
    return end_entry(r, node, True)


cdef inline int put_double(Reader* r, Node* node, int number, double value, size_t begin) noexcept nogil:
    """Add a number to a float or double; one that only becomes infinite there does not fit."""
    cdef float narrow
    cdef int fault
    if node.kind == DOUBLE:
        fault = put_bytes(&node.data, <const uint8_t*>&value, 8)
    else:
        narrow = <float>value
        if narrow - narrow != 0 and value - value == 0:
            return wrong(r, OUT_OF_RANGE, number, begin)
        fault = put_bytes(&node.data, <const uint8_t*>&narrow, 4)
    return NO_MEMORY if fault else end_entry(r, node, True)


cdef inline int put_whole(
    Reader* r, Node* node, int number, uint64_t magnitude, bint negative, size_t begin
) noexcept nogil:
    """Add a whole number to a tinyint, smallint, int, bigint, or as milliseconds to a timestamp."""
    cdef uint64_t limit
    cdef int64_t value
    cdef int8_t value8
    cdef int16_t value16
    cdef int fault
    if node.kind == TIMESTAMP:
        limit = <uint64_t>(-TIME_MS_MIN if negative else TIME_MS_MAX)
    else:
        limit = 1ULL << (7 if node.kind == BYTE else 15 if node.kind == SHORT else 31 if node.kind == INT else 63)
        limit -= not negative
    if magnitude > limit:
        return wrong(r, OUT_OF_RANGE, number, begin)
    value = <int64_t>(0 - magnitude if negative else magnitude)
    if node.kind == TIMESTAMP:
        fault = put_i64(&node.data, value * 1000)
    elif node.kind == LONG:
        fault = put_i64(&node.data, value)
    elif node.kind == INT:
        fault = put_i32(&node.data, <int32_t>value)
    elif node.kind == SHORT:
        value16 = <int16_t>value
        fault = put_bytes(&node.data, <const uint8_t*>&value16, 2)
    else:
        value8 = <int8_t>value
        fault = put_bytes(&node.data, <const uint8_t*>&value8, 1)
    return NO_MEMORY if fault else end_entry(r, node, True)


cdef inline int put_decimal(Reader* r, Node* node, int number, Text text, size_t begin) noexcept nogil:
    """Add a number that scan_number has read times 10^scale, if that is whole and has few digits."""
    cdef const uint8_t* p = text.data
    cdef const uint8_t* end = p + text.size
    cdef bint negative = p[0] == 0x2D
    cdef bint in_fraction = False
    cdef bint power_negative = False
    cdef motelog_u128 units = 0
    cdef int64_t digits = 0      # from the first to the last that is not zero
    cdef int64_t zeros = 0       # after those
    cdef int64_t fraction = 0
    cdef int64_t power = 0
    p += negative
    while p < end and (p[0] | 0x20) != 0x65:
        if p[0] == 0x2E:
            in_fraction = True
        else:
            fraction += in_fraction
            if p[0] == 0x30:
                zeros += digits > 0
            else:
                digits += zeros + 1
                if digits > 38:
                    return wrong(r, OUT_OF_RANGE, number, begin)
                while zeros:
                    units = units * 10
                    zeros -= 1
                units = units * 10 + (p[0] - 0x30)
        p += 1
    if p < end:
        p += 1
        power_negative = p[0] == 0x2D
        p += p[0] == 0x2D or p[0] == 0x2B
        while p < end:
            power = min(power * 10 + (p[0] - 0x30), <int64_t>1000000000)
            p += 1
    if digits:
        power = (-power if power_negative else power) - fraction + zeros + node.scale
        if power < 0 or digits + power > node.precision:
            return wrong(r, OUT_OF_RANGE, number, begin)
        while power:
            units = units * 10
            power -= 1
    if negative:
        units = 0 - units
    if put_bytes(&node.data, <const uint8_t*>&units, 16):
        return NO_MEMORY
    return end_entry(r, node, True)
