"""Session state machines. No I/O; time is an argument."""
