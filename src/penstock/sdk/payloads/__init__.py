"""Typed payloads: objects of the application to bytes, and bytes back to objects."""
