"""Requests to responses: one module for each group of APIs."""
