"""Transactions: half messages, what ends them, and asking producers about those left open."""
