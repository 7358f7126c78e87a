"""Replies that nobody could decode: they are refused, and not pushed to who waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from motelog.core.message import REPLY_TO_CLIENT
from motelog.core.remoting.codes import RequestCode, ResponseCode
from tests.support.broker_stage import Client, broker_stage


@pytest.mark.parametrize("value", ["a\x01b", "a\0b", "v" * 32_767])
def test_properties_that_cannot_be_passed_on_are_refused(tmp_path: Path, value: str) -> None:
    properties = f"{REPLY_TO_CLIENT}\x01asker\x02CORRELATION_ID\x01{value}\x02"
    ext = {"topic": "A", "queueId": 0, "properties": properties}
    with broker_stage(tmp_path) as stage:
        asker = Client()
        stage.beat("G", client=asker, client_id="asker")
        before = len(asker.answers)
        code = stage.code(RequestCode.SEND_REPLY_MESSAGE, ext, b"reply")
        assert code == ResponseCode.MESSAGE_ILLEGAL
        assert len(asker.answers) == before
