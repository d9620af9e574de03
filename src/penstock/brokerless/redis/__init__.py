"""Topics in Redis: a stream for each partition, and scripts that make every change in one step."""
