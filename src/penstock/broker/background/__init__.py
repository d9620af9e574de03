"""The background work of a broker: retention, compaction, retired partitions, what archives still need."""
