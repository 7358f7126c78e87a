"""Copies of a broker's log: what a master sends to its slaves, and what a slave takes."""
