"""Partitions as a broker serves them: their leadership, what readers may see, and waiting requests."""
