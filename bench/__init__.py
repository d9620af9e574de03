"""Measures Penstock beside Apache Kafka and other brokers, in one run on one machine."""
