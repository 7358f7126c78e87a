"""Back-off: repeated failed logins have to wait longer and longer.

Owns: the number of failures, until when to wait. Must not touch: what a failure is (``logins``).
Invariants: it has at most KEYS_MAX entries; the oldest is dropped first. It never refuses a login
that was right before, since ``logins`` does not ask it then: an attacker cannot lock a device out
by failing in its name.

    failures   free        free + 1    free + 2    ...
    wait       none        1 s         2 s          ... WAIT_MS_MAX; forgotten after FORGET_MS
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

KEYS_MAX: Final = 10_000
WAIT_MS_MAX: Final = 60_000
FORGET_MS: Final = 600_000
#: Failures without a wait: of one user from one address; of one user from anywhere; of an address,
#: which may be shared by a whole site.
FREE_OF_BOTH: Final = 3
FREE_OF_USER: Final = 30
FREE_OF_HOST: Final = 30

#: (address, user); one of them may be empty.
_Key = tuple[str, str]


class BackOff:
    """Failures by address and by user."""

    def __init__(self) -> None:
        #: -> (failures, time of the last, time to wait until); least recently changed first.
        self._failed: OrderedDict[_Key, tuple[int, int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failed)

    def wait_ms(self, host: str, user: str, now_ms: int) -> int:
        """Return how long this client must still wait, 0 if it may try."""
        longest = 0
        for key, _ in _keys(host, user):
            _, _, until_ms = self._failed.get(key, (0, 0, 0))
            longest = max(longest, until_ms - now_ms)
        return longest

    def failed(self, host: str, user: str, now_ms: int) -> None:
        """Record a failure."""
        for key, free in _keys(host, user):
            failures, last_ms, _ = self._failed.pop(key, (0, 0, 0))
            failures = failures + 1 if now_ms - last_ms < FORGET_MS else 1
            until_ms = 0
            if failures > free:
                until_ms = now_ms + min(WAIT_MS_MAX, 1000 << min(failures - free - 1, 16))
            self._failed[key] = (failures, now_ms, until_ms)
        while len(self._failed) > KEYS_MAX:
            self._failed.popitem(last=False)

    def succeeded(self, host: str, user: str) -> None:
        """Forget the failures of one user from one address, but not of other users there."""
        self._failed.pop((host, user), None)


def _keys(host: str, user: str) -> list[tuple[_Key, int]]:
    keys: list[tuple[_Key, int]] = [((host, ""), FREE_OF_HOST)]
    if user:
        keys += [((host, user), FREE_OF_BOTH), (("", user), FREE_OF_USER)]
    return keys
