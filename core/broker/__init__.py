"""Broker role: topics, groups, pull and hold, over the store."""
