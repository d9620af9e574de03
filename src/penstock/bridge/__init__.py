"""Delay bridge: delays messages for a Kafka cluster that cannot, as a client of it."""
