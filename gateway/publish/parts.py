"""The parts that a publish goes through, as one value.

Owns: only that. Must not touch: what the parts do.
"""

from __future__ import annotations

from dataclasses import dataclass

from motelog.gateway.publish.acknowledge import Answers
from motelog.gateway.publish.commit import Commit
from motelog.gateway.publish.exchanges import Exchanges
from motelog.gateway.publish.publishing import Publishing
from motelog.gateway.publish.rates import Rates
from motelog.gateway.publish.routes import Routes


@dataclass(frozen=True, slots=True)
class PublishParts:
    """From a PUBLISH to its answer."""

    rates: Rates
    routes: Routes
    publishing: Publishing
    exchanges: Exchanges
    commit: Commit
    answers: Answers
