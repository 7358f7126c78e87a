"""Motelog topics as a Spark data source, and the jobs that come with it.

Owns: everything that imports pyspark. Must not touch: the store, MQTT; it reads through bridge.
"""
