"""The only room with sockets: listeners, connections, frames, transport, peers, and HTTP for monitoring."""
