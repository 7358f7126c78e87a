"""The durable log: CommitLog, ConsumeQueues, flush, recovery."""
