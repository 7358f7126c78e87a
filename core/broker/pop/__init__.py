"""POP: which messages are in work, when they come again, and where each group goes on."""
