"""What a start does before the store is open: recovery of the log and its queues."""
