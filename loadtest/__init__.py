"""Load: Locust users and scenarios, and the throughput benches behind `motelog bench`."""
