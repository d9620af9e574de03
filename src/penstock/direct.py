"""The SDK's clients on a database, without a broker."""
