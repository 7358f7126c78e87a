"""Copies of a log on other machines: the wire and the rules, without I/O."""
