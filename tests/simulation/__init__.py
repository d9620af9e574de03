"""A cluster in one process: the pure machines of replication and elections on a simulated network, disk and clock."""
