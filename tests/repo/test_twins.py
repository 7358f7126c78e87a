"""The clients for threads and for asyncio are what the classes for trio say."""

from __future__ import annotations

import pytest

from tests.support.repository import ROOT
from tests.twins import FORMS, Form, text_of


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.path)
def test_the_clients_of_a_form_are_what_the_native_ones_say(form: Form) -> None:
    written = (ROOT / form.path).read_text(encoding="utf-8")
    assert written == text_of(form), "python -m tests.twins"
