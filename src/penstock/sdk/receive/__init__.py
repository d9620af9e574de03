"""Receiving: subscriptions, the dispatcher and its pure parts, retries and dead letters."""
