"""Several gateway processes that serve as one: starting them, and the messages between them."""
