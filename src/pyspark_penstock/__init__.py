"""Where Spark finds `format("penstock")` by itself: it looks through installed modules named pyspark_*."""

from penstock.pipeline.source.datasource import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
