"""Schemas of keys and values, kept in the console: what Avro and Protobuf messages are decoded with."""
