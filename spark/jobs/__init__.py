"""Jobs that ship with Motelog, started by `motelog spark run NAME`."""
