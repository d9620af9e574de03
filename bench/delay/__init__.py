"""Delayed messages of Penstock beside those of RocketMQ."""
