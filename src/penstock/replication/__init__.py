"""Partitions as a broker serves them: who leads, what readers may see, who waits for more."""
