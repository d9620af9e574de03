"""History out of the lake, to a topic or to a group."""
