"""Requests to responses: one file for each family of APIs."""
