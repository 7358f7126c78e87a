"""From the log to devices: who gets a record, live or later."""
