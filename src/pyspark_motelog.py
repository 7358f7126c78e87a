"""Spark finds ``format("motelog")`` by this module's name; no registration is needed.

Owns: the name DefaultSource. Spark imports every ``pyspark_*`` module whenever it looks for a data
source, so nothing heavy is imported here.
"""

from motelog.spark.source import MotelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
