"""The SDK without a broker: topics in a database, in files, in Redis, in memory, or in the producer's own process."""
