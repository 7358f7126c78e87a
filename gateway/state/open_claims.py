"""Claims of client identifiers that are not settled, in the view and in memory.

Owns: the table of claims. Must not touch: whose turn it is (``session_rows``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from motelog.gateway.state.view import View

CLAIMS_TABLE: Final = """CREATE TABLE IF NOT EXISTS claims (
    client_id TEXT, at INTEGER, run INTEGER NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (client_id, at)
) WITHOUT ROWID"""


class Claimed(NamedTuple):
    """A claim that is not settled: its queue offset, its run's row number, its record's number."""

    at: int
    run: int
    number: int


class OpenClaims:
    """The claims in ``view``; runs are given by the numbers of their rows."""

    def __init__(self, view: View) -> None:
        self._view = view
        #: By client identifier, in the order of the log.
        self.by_client: dict[str, list[Claimed]] = {}

    def load(self) -> None:
        """Read the claims, after the view was opened or rolled back."""
        self.by_client = {}
        for client_id, *claimed in self._view.execute(
            "SELECT client_id, at, run, number FROM claims ORDER BY at"
        ):
            self.by_client.setdefault(client_id, []).append(Claimed(*claimed))

    def open(self, client_id: str, claimed: Claimed) -> None:
        """Make later claims wait until this one is settled."""
        self._view.execute(
            "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?)", (client_id, *claimed)
        )
        self.by_client.setdefault(client_id, []).append(claimed)

    def settle(self, client_id: str, run: int, number: int) -> None:
        """Forget a run's claims of a client identifier up to the record ``number``."""
        if self._keep(client_id, lambda one: one.run != run or one.number > number):
            self._view.execute(
                "DELETE FROM claims WHERE client_id = ? AND run = ? AND number <= ?",
                (client_id, run, number),
            )

    def end_run(self, run: int) -> None:
        """Forget all claims of a run."""
        for client_id in list(self.by_client):
            self._keep(client_id, lambda one: one.run != run)
        self._view.execute("DELETE FROM claims WHERE run = ?", (run,))

    def _keep(self, client_id: str, is_kept: Callable[[Claimed], bool]) -> bool:
        """Forget the claims of a client identifier that are not kept; return whether any were."""
        known = self.by_client.get(client_id, [])
        kept = list(filter(is_kept, known))
        if kept:
            self.by_client[client_id] = kept
        else:
            self.by_client.pop(client_id, None)
        return len(kept) < len(known)
