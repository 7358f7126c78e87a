"""From clients to the log: publishes, their routes, the append, acknowledgements."""
