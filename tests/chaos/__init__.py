"""A cluster of real processes is hurt in all ways under load, and everything acknowledged is looked for afterwards."""
