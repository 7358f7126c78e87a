"""How long gateways of the same brokers wait before they count one of them as lost.

Owns: these times, each computed from TICK_S and LOST_TICKS. Must not touch: clocks, what is done
when a time is over (``state.journal``, ``connect.run``, ``log.remote``).

    ticks after a gateway's last record, while others live
    1    it ticks
    4    if a broker has not answered that tick for ANSWER_S, it writes another record at once
    3    if it has not ticked, it asks the log whether its run lives, and serves no client meanwhile
    4    if it has not ticked, it begins a new run without asking
    5    another gateway has read back as many ticks of its own: it writes that the run is lost

Ticks wait for no publishes: each queue of a remote log is sent to by itself, and the queues of the
gateways' own topics need no place among the sends that a broker may have under way. A tick waits
for its own broker while that is away, as the ticks of all gateways do. Gateways count silence in
ticks that they have read back, so ``append_wait_s`` may be longer than LOST_TICKS: an outage does
not count as silence.

When a run is over, another gateway may look for the message of a QoS 2 mark and conclude that it is
not stored. So a message is not sent later than ``append_wait_s`` after its mark was made, and an
answer takes ANSWER_S: after ``arrival_ms_max`` it has arrived, or never will.
"""

from __future__ import annotations

from typing import Final

#: How often progress is stored, and other gateways see that this one lives. After a crash, the QoS
#: 1 messages of this time are sent again.
TICK_S: Final = 1.0
#: A run that has written nothing during this many ticks of our own is lost.
LOST_TICKS: Final = 5
#: Time between two ticks after which others may count this gateway as lost: less than LOST_TICKS of
#: their ticks.
STILL_MS_MAX: Final = int((LOST_TICKS - 1) * TICK_S * 1000)
#: Time without a tick after which this gateway asks the log whether its run lives. The margin lets
#: it finish work that has begun: on a busy machine a turn takes a while, and asking at the last
#: moment would sometimes be too late.
DOUBT_MS: Final = STILL_MS_MAX - int(TICK_S * 1000)
#: How long a remote broker may take to answer an append: a tick that gets no answer, and the record
#: after it, take less than LOST_TICKS.
ANSWER_S: Final = (LOST_TICKS - 2) * TICK_S
#: The largest difference between the clocks of gateways and brokers.
CLOCKS_MS_MAX: Final = 5_000


def arrival_ms_max(append_wait_s: float) -> int:
    """Return after how long a message that has not arrived at its broker never will."""
    return int((append_wait_s + ANSWER_S) * 1000)
