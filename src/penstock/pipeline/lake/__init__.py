"""The lake: a Delta table of records, its files, what is chosen from it, and its upkeep."""
