"""The topics of one process, served to others over TCP: no broker, no disk."""
