"""What the gateway needs of a log, and the logs there are."""
