"""Sockets in batches: the reactor kernel, its reference and the task that drives it."""
