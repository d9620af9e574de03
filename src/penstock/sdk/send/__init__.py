"""Sending: outgoing messages, producers, buffering while the cluster is unreachable, transactions, requests."""
