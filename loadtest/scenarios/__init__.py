"""Locust scenarios, one per file."""
