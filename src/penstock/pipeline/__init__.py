"""PySpark: topics as tables and streams, the archive into a lake, and what is made of it, as a client of brokers."""
