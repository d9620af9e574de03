"""Callers and what they may do: principals, ways to log in, ACLs, quotas; values and decisions without I/O."""
