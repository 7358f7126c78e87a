"""Message traces: records of the clients that sent and consumed messages."""
