"""Clients without a broker, and brokers beside them, are killed at random while they use one database."""
