"""What a fault program says when its rounds are over.

Owns: the fields and words that all such programs share. Must not touch: what a round is.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Done(Protocol):
    """One round that is over."""

    @property
    def kind(self) -> str: ...
    @property
    def acknowledged(self) -> int: ...


@dataclass(slots=True)
class Report:
    """One run of a program; ``failure`` says what broke a promise, None while nothing has."""

    seed: int
    failure: str | None = None
    _begun: float = field(default_factory=time.monotonic)

    @staticmethod
    def of(seed: int | None) -> Report:
        """Begin a run, with a seed by chance if none was asked for."""
        return Report(random.SystemRandom().randrange(1 << 32) if seed is None else seed)

    def end(self, done: Sequence[Done], found: str, *, as_json: bool, **more: Any) -> int:
        """Write the report and return the exit status.

        ``found`` is what else a run without a failure says; ``more`` are further fields.
        """
        seconds = round(time.monotonic() - self._begun)
        acknowledged = sum(one.acknowledged for one in done)
        if as_json:
            fields = {
                "seed": self.seed,
                "rounds": len(done),
                "kinds": dict(Counter(one.kind for one in done)),
                "acknowledged": acknowledged,
                **more,
                "failure": self.failure,
                "seconds": seconds,
            }
            sys.stdout.write(json.dumps(fields) + "\n")
        elif self.failure is None:
            sys.stdout.write(
                f"seed {self.seed}: {len(done)} rounds, {acknowledged} messages acknowledged; "
                f"{found}; {seconds} s\n"
            )
        else:
            sys.stdout.write(f"seed {self.seed}: {self.failure}\n")
        return 0 if self.failure is None else 1
