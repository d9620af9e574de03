"""Topics in Spark: `format("penstock")`, read and written, as tables and as streams."""
