"""The CommitLog: its files, appends, flushes, the write buffer."""
