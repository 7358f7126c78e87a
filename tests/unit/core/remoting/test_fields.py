"""Fields of a request's header: what they are read as, and what is refused."""

from __future__ import annotations

import pytest

from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import ResponseCode
from motelog.core.remoting.fields import bool_field, int32_field, int_field, text_field


def test_what_is_there_is_read() -> None:
    assert text_field({"topic": ""}, "topic") == ""
    assert int_field({"n": "-9223372036854775808"}, "n") == -(2**63)
    assert int32_field({"n": "2147483647"}, "n") == 2**31 - 1


def test_what_is_missing_is_named_unless_it_has_a_default() -> None:
    for read in (text_field, int_field, int32_field):
        with pytest.raises(BrokerError, match="the field offset is missing") as refused:
            read({}, "offset")
        assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert (int_field({}, "n", 7), int32_field({}, "n", -1)) == (7, -1)


@pytest.mark.parametrize("text", ["", "ten", "1.5", "0x10", "9" * 5000, "9223372036854775808"])
def test_what_is_no_number_of_64_bits_is_refused(text: str) -> None:
    with pytest.raises(BrokerError, match="the field n is"):
        int_field({"n": text}, "n", 0)


@pytest.mark.parametrize("text", ["2147483648", "-2147483649"])
def test_what_is_no_number_of_32_bits_is_refused(text: str) -> None:
    with pytest.raises(BrokerError, match="not a number"):
        int32_field({"n": text}, "n")


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("True", True), ("1", True), ("false", False), ("", False)]
)
def test_a_flag_is_as_java_or_c_writes_it(text: str, *, value: bool) -> None:
    assert bool_field({"f": text}, "f") is value
    assert bool_field({}, "f") is False
