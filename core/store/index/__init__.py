"""IndexFiles: records found by key and by time."""
