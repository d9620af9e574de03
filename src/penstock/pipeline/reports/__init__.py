"""What topics were like: volume, latency, lag, failures, skew, delays, sizes, and what did not arrive."""
