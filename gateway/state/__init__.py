"""State that outlives connections and processes: records in the log, and the view of them."""
