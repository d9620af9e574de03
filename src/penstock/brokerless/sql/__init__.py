"""The queue in a database that clients use without a broker; `docs/internals/direct.md`."""
