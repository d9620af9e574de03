"""Groups of the classic protocol: the leader among the members assigns partitions."""
