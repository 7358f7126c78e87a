"""docs/reference is what the code says, and no reason code is missing from it."""

from __future__ import annotations

import pytest

from motelog.gateway.mqtt.packet_types import ReasonCode
from tests.conformance.page import PAGE as CONFORMANCE
from tests.reference import reason_codes
from tests.reference.pages import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    written = (FOLDER / name).read_text(encoding="utf-8")
    assert written == PAGES[name](), "python -m tests.reference"


def test_there_are_no_other_pages() -> None:
    assert {path.name for path in FOLDER.iterdir()} == PAGES.keys() | {CONFORMANCE.name}


def test_each_reason_code_that_the_gateway_sends_is_explained_and_no_other() -> None:
    sent = reason_codes.sent()
    assert sent | reason_codes.GRANTED == reason_codes.ROWS.keys()
    # The scan sees codes in decisions, as defaults of errors, and not what no client is sent.
    assert {ReasonCode.SERVER_SHUTTING_DOWN, ReasonCode.TOPIC_ALIAS_INVALID} <= sent
    assert ReasonCode.BANNED not in sent
