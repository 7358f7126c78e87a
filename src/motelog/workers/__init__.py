"""Several gateway processes that serve as one: who starts them, what they say to each other."""
