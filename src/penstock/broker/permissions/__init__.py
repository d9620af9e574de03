"""What each call needs, in one table, and the guards that ask for it before a handler sees the request."""
