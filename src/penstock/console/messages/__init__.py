"""Messages as people see them: reading, decoding, searching, following a topic, sending."""
