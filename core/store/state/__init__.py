"""The store's state besides the log: the checkpoint and the progress of a start."""
