"""The data pipeline beside Spark's own Kafka connector: reading topics, and bringing them to disk for good."""
