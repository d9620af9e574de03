"""The coordination tree: its contract, and the engines that keep it: one SQLite file, or ZooKeeper."""
