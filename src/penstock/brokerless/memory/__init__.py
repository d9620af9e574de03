"""Topics in the memory of this process."""
