"""State that outlives connections and processes: records in the log, and views of them."""
