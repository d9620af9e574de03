"""Groups of the consumer protocol (KIP-848): members say what they subscribe to, the broker assigns partitions."""
