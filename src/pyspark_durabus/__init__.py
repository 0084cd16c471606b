"""Spark imports every package named ``pyspark_*`` for its ``DefaultSource``: so it knows ``format("durabus")``."""

from durabus.pipeline.source import DurabusDataSource as DefaultSource

__all__ = ["DefaultSource"]
