"""The Spark sink: rows become messages, each of them once."""
