"""How long the way of one message is; the goal is a third of it."""

from __future__ import annotations

import pytest

from tests.trips import TRIPS, play

#: Calls, files and returns that a trip may take; whoever shortens one lowers its line.
LIMITS = {
    "publish": (76, 27, 90),
    "deliver": (112, 35, 134),
    "connect": (170, 42, 176),
    "subscribe": (146, 32, 126),
    "send": (106, 35, 112),
    "pull": (70, 26, 72),
    "hold": (88, 31, 84),
}


@pytest.mark.parametrize("name", TRIPS)
def test_a_trip_is_no_longer_than_it_was(name: str) -> None:
    trip = play([name])[name]
    assert all(map(int.__le__, trip.figures, LIMITS[name])), f"{trip.figures}\n{trip.tree()}"
