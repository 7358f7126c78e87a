"""The included jobs, started by `motelog spark run NAME`."""
