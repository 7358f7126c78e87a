"""POP: which messages are in work, when they are delivered again, and each group's progress."""
