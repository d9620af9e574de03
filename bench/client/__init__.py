"""The load: one driver a protocol, each load in a process of its own."""
