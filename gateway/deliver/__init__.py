"""From the log to clients: who receives a record, live or later."""
