"""Sending: what a message is made of, the producers behind it, what is kept while the cluster is away, transactions."""
