"""Committed offsets of topics in a database, as tables that a person can read and change."""
