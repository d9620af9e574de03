"""What tests of running programs share: real brokers, raw connections, and waiting for a condition."""
