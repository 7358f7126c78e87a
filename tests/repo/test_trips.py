"""How long the way of one message is; the goal is a third of it."""

from __future__ import annotations

import pytest

from tests.trips import TRIPS, play

#: Calls, files and returns that a trip may take; whoever shortens one lowers its line.
LIMITS = {
    "publish": (34, 16, 29),
    "deliver": (66, 25, 68),
    "connect": (132, 40, 121),
    "subscribe": (109, 29, 80),
    "send": (38, 18, 39),
    "pull": (40, 20, 37),
    "hold": (38, 17, 33),
}


@pytest.mark.parametrize("name", TRIPS)
def test_a_trip_is_no_longer_than_it_was(name: str) -> None:
    trip = play([name])[name]
    assert all(map(int.__le__, trip.figures, LIMITS[name])), f"{trip.figures}\n{trip.tree()}"
