"""What a broker does without being asked: retention, compaction, retired partitions, what archives still need."""
