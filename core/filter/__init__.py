"""Filters over message properties (SQL92)."""
