"""The record batch (magic 2): view, stamp, decode, build, compress."""
