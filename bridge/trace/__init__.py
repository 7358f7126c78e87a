"""What became of messages, told by the clients that sent and consumed them: traces."""
