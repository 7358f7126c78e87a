"""Messages that are delivered later: levels, times, the schedule."""
