"""The parts of the log that brokers in other processes keep; ``remote_log`` puts them together."""
