"""The broker, and the parts that all roles share."""
