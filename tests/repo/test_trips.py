"""How long the way of one message is; the goal is a third of it."""

from __future__ import annotations

import pytest

from tests.trips import TRIPS, play

#: Calls, files and returns that a trip may take; whoever shortens one lowers its line.
LIMITS = {
    "publish": (48, 20, 47),
    "deliver": (84, 28, 91),
    "connect": (165, 40, 151),
    "subscribe": (142, 32, 111),
    "send": (92, 31, 92),
    "pull": (71, 27, 74),
    "hold": (87, 31, 84),
}


@pytest.mark.parametrize("name", TRIPS)
def test_a_trip_is_no_longer_than_it_was(name: str) -> None:
    trip = play([name])[name]
    assert all(map(int.__le__, trip.figures, LIMITS[name])), f"{trip.figures}\n{trip.tree()}"
