"""From clients to the log: the reactor's batches, routes, acknowledgements."""
