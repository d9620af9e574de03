"""The only room with sockets: the listener, its connections, and their limits."""
