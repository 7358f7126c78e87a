"""The parts of the log on brokers in other processes; ``remote_log`` assembles them."""
