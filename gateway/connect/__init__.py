"""From CONNECT to the end of a session: who may connect, and what happens to sessions."""
