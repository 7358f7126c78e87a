"""CONNECT to the end of a session: who may connect, and what becomes of sessions."""
