"""The brokers under test: how each is obtained, started on free loopback ports, and stopped by its id."""
