"""Clusters under test: three brokers of one kind, whose nodes can be killed, stopped and started again."""
