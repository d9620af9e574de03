"""Receiving: subscriptions, their engine and its pure parts, retries and dead letters, dedup."""
