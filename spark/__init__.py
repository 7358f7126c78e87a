"""Motelog topics as a Spark data source, and the included jobs.

Owns: everything that imports pyspark. Must not touch: the store, MQTT; it reads through bridge.
"""
