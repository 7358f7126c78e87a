"""What the store remembers beside the log: the checkpoint and how far a start is."""
