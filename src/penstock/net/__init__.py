"""The only room with sockets: listeners, connections, frames, transport, and connections to other brokers."""
