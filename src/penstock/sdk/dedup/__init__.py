"""Stores that remember which business ids were handled: in memory, SQL or Redis."""
