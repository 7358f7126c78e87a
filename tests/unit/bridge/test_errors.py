"""What the native client's errors say, and how much of it."""

from __future__ import annotations

from motelog.bridge.errors import LISTED_MAX, CommitFailedError, SendFailedError, listed
from motelog.core.errors import RemotingError
from motelog.core.message import MessageQueue


def test_of_a_long_list_the_first_are_told_and_the_rest_is_counted() -> None:
    names = [f"n{number}" for number in range(LISTED_MAX + 2)]
    assert listed(names[:2]) == "n0, n1"
    assert listed(names[:LISTED_MAX], "; ") == "; ".join(names[:LISTED_MAX])
    assert listed(names) == f"{', '.join(names[:LISTED_MAX])}, and 2 more"
    assert listed([]) == ""


def test_an_error_about_many_names_some() -> None:
    queues = [MessageQueue("T", f"b{number % 40:02}", number) for number in range(4000)]
    alike = CommitFailedError(dict.fromkeys(queues, RemotingError("away")))
    each = CommitFailedError({queue: RemotingError(f"away {queue}") for queue in queues})
    assert len(alike.failures) == len(each.failures) == 4000
    assert "queues 0, 40, 80, " in str(alike)
    assert str(alike).count("and 90 more: away") == LISTED_MAX
    attempts = tuple(f"broker 'b' failed: {number}" for number in range(1000))
    sent = SendFailedError("message m", attempts=attempts)
    assert sent.attempts == attempts
    assert str(sent).endswith("failed: 9; and 990 more")
    for error in (alike, each, sent):
        assert len(str(error)) < 2_000
