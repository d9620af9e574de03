"""Databases: addresses, connections, threads, dialects and errors. Knows nothing of queues."""
