"""How long the way of one message is; the goal is a third of it."""

from __future__ import annotations

import pytest

from tests.trips import TRIPS, play

#: Calls, files and returns that a trip may take; whoever shortens one lowers its line.
LIMITS = {
    "publish": (32, 16, 25),
    "deliver": (63, 25, 64),
    "connect": (124, 40, 115),
    "subscribe": (107, 28, 77),
    "send": (38, 18, 37),
    "pull": (39, 20, 35),
    "hold": (36, 17, 30),
}


@pytest.mark.parametrize("name", TRIPS)
def test_a_trip_is_no_longer_than_it_was(name: str) -> None:
    trip = play([name])[name]
    assert all(map(int.__le__, trip.figures, LIMITS[name])), f"{trip.figures}\n{trip.tree()}"
