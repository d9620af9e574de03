"""Dispatch, request handlers, metrics and health; `broker.py` wires everything."""
