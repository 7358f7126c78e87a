"""What the gateway needs of a log, and the logs that it can use."""
