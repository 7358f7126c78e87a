"""How long the way of one message is; the goal is a third of it."""

from __future__ import annotations

import pytest

from tests.trips import TRIPS, play

#: Calls, files and returns that a trip may take; whoever shortens one lowers its line.
LIMITS = {
    "publish": (58, 23, 60),
    "deliver": (94, 31, 104),
    "connect": (175, 39, 164),
    "subscribe": (153, 33, 126),
    "send": (92, 31, 92),
    "pull": (71, 27, 74),
    "hold": (87, 31, 84),
}


@pytest.mark.parametrize("name", TRIPS)
def test_a_trip_is_no_longer_than_it_was(name: str) -> None:
    trip = play([name])[name]
    assert all(map(int.__le__, trip.figures, LIMITS[name])), f"{trip.figures}\n{trip.tree()}"
