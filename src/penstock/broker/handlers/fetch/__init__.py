"""Fetch: consumers and followers, of partitions, views and timer topics."""
