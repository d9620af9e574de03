"""Bytes to typed requests and typed responses to bytes, as the Kafka protocol lays them out, with no I/O."""
