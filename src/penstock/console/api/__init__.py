"""The REST API under /api: one module a resource, each a thin shell around the operations."""
