"""What the console knows of each cluster: one poller a cluster asks it, and every viewer reads the last snapshot."""
